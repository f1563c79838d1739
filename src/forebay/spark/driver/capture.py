"""Which operators' state accesses can be captured."""

from __future__ import annotations

from forebay.access_patterns import Pattern
from forebay.errors import UnsupportedConfiguration
from forebay.spark.properties import PREFIX
from forebay.windows import Buffered, CountWindows, Firing, FirstRows, Lives, Preceding, SharedWindows, Windows

CAPTURE = PREFIX + "captureTrace"


def require_capturable(windows: Windows, firing: Firing | None, pattern: Pattern, text: str) -> None:
    """`UnsupportedConfiguration` for an operator of which no trace can be made."""
    why = None
    if firing is not None:
        why = "of windows that fire more than once"
    elif isinstance(windows, CountWindows) and not (windows.accumulating and windows.size == 1):
        why = "of count windows"
    elif isinstance(windows, CountWindows) and pattern is not Pattern.RMW:
        why = "of holistic aggregates over all rows so far, with emit='every',"
    elif isinstance(windows, Preceding):
        why = "of fb.preceding"
    elif isinstance(windows, FirstRows):
        why = "of fb.dedupe"
    elif isinstance(windows, Lives):
        why = "of fb.continuousJoin"
    elif isinstance(windows, Buffered):
        why = "of fb.buffer"
    elif isinstance(windows, SharedWindows):
        why = "of fb.patterns"
    if why is not None:
        raise UnsupportedConfiguration(
            f"{CAPTURE} is set, but the state accesses {why} cannot be captured ({text}). Unset it while this operator is "
            "planned; docs/harness.md says which operators can be captured."
        )
