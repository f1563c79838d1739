"""What all commands share: where they print, how they say that the keyboard has ended them, files, and some options."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from forebay.errors import InvalidArgument, StateDirectoryError

WIDE = 100_000
"""As many characters as no line has."""


class _Console(Console):
    """Where results are printed: lines are cut or broken for a terminal only, or for a width that `COLUMNS` has."""

    def __init__(self) -> None:
        super().__init__()
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = WIDE

    def on_broken_pipe(self) -> None:
        """End as a program does to whose output nobody listens any more, `head` for example."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE)


console = _Console()

errors = Console(stderr=True)
"""Where errors are printed, apart from what a command was asked for."""

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C, as a shell gives it."""


def require_new(out: Path) -> None:
    """`InvalidArgument` if a file that is to be written at the end is there already, or has no directory."""
    if out.exists():
        raise InvalidArgument(f"{out} exists already; name a file that does not")
    if not out.parent.is_dir():
        raise InvalidArgument(f"there is no directory {out.parent} for {out.name}; make it first")


def make_new(out: Path) -> None:
    """Make a directory that does not exist."""
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise InvalidArgument(f"{out} exists already; name a directory that does not") from None
    except OSError as error:
        raise StateDirectoryError(f"the directory {out} cannot be made: {error.strerror}") from error


def by_name(option: str, given: list[str] | None, form: str = "NAME=VALUE") -> dict[str, str]:
    """The values of an option that names one each time that it is given."""
    for each in given or []:
        if "=" not in each:
            raise InvalidArgument(f"{option} {each!r} is not of the form {form}")
    return dict(each.split("=", 1) for each in given or [])
