"""What all commands share: where they print, how they say that the keyboard has ended them, and files that they make."""

from __future__ import annotations

import signal
from pathlib import Path

from rich.console import Console

from forebay.errors import InvalidArgument

console = Console()

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
