"""Internal: which store serves a window operation, the choice of FlowKV (section 3.1), made when the query is planned.

How the aggregate is computed decides between *read-modify-write* (an intermediate aggregate is enough) and *append* (all
rows must be there when the window fires). How the windows lie decides between *aligned* and *unaligned* reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Pattern(Enum):
    """The access patterns of FlowKV; and that of an operator of several patterns, each of which has one of those."""

    AAR = "append and aligned read"
    AUR = "append and unaligned read"
    RMW = "read-modify-write"
    SHARED = "events that patterns share"


@dataclass(frozen=True)
class Choice:
    """A pattern and the sentence that says why it was chosen; where several patterns share events, a line for each."""

    pattern: Pattern
    reason: str
    members: tuple[str, ...] = ()


def choose(holistic: Sequence[str], *, aligned: bool = True, moving: bool = False) -> Choice:
    """The pattern of a window whose aggregates include the ``holistic`` ones (names, for the reason).

    Of windows that are ``moving`` with the rows of a key, rows have to be taken out again, whatever the aggregates are.

    Examples
    --------
    >>> choose([]).pattern
    <Pattern.RMW: 'read-modify-write'>
    >>> choose(["median(price)"]).reason
    'median(price) needs all rows of a window at once, and aligned windows fire for all keys together'
    """
    if moving:
        return Choice(
            Pattern.AUR, "rows leave a window that moves on with the rows of its key, so all that are in it are kept"
        )
    if holistic:
        needs = "needs" if len(holistic) == 1 else "need"
        rows = f"{', '.join(holistic)} {needs} all rows of a window at once"
        if aligned:
            return Choice(Pattern.AAR, f"{rows}, and aligned windows fire for all keys together")
        return Choice(Pattern.AUR, f"{rows}, and the windows of each key fire at a time of their own")
    return Choice(Pattern.RMW, "every aggregate has a small intermediate state that rows are merged into")
