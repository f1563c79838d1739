"""What all commands share: where they print, how they say that the keyboard has ended them, and files that they make."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from rich.console import Console

from forebay.errors import InvalidArgument

WIDE = 100_000
"""As many characters as no line has."""


def _console() -> Console:
    """Where results are printed: lines are cut or broken for a terminal only, or for a width that `COLUMNS` has."""
    made = Console()
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = WIDE
    return made


console = _console()

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
