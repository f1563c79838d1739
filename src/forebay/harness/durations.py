"""Durations as text, such as ``"2 minutes"`` or ``"2m"``, in microseconds."""

from __future__ import annotations

import re

from forebay.errors import InvalidArgument

SECOND = 1_000_000

_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": SECOND,
    "minute": 60 * SECOND,
    "hour": 3_600 * SECOND,
    "day": 86_400 * SECOND,
    "week": 604_800 * SECOND,
}
_SHORT = {"us": "microsecond", "ms": "millisecond", "s": "second", "m": "minute", "h": "hour", "d": "day"}
_PART = re.compile(r"\s*(-?\d+)\s*([a-z]+)\s*")


def microseconds(text: str | int) -> int:
    """The length of a duration; whole numbers are microseconds already.

    Examples
    --------
    >>> microseconds("2 minutes"), microseconds("1 second 500 milliseconds"), microseconds("5s"), microseconds(7)
    (120000000, 1500000, 5000000, 7)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    total, at = 0, 0
    while isinstance(text, str) and at < len(text):
        part = _PART.match(text, at)
        unit = part and _SHORT.get(part[2], part[2].removesuffix("s"))
        if part is None or unit not in _UNITS:
            break
        total, at = total + int(part[1]) * _UNITS[unit], part.end()
    if not isinstance(text, str) or not at or at < len(text):
        raise InvalidArgument(f"{text!r} is not a duration; write one such as '5 seconds' or '2 minutes'")
    return total
