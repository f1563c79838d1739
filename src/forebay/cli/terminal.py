"""What all commands share: where they print, and how they say that the keyboard has ended them."""

from __future__ import annotations

import signal

from rich.console import Console

console = Console()

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C, as a shell gives it."""
