"""The plan of an operator: all that its store instances need to know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from forebay.access_patterns import Pattern
from forebay.store.options import Options
from forebay.windows import Firing, Preceding, Windows

if TYPE_CHECKING:
    from forebay.aggregates.aggregation import Aggregation
    from forebay.aggregates.processor import Processor
    from forebay.aggregates.user_defined import UserFunction
    from forebay.engine.window_join import WindowJoin

END_OF_TIME = 2**62
"""A watermark (microseconds) after every instant: all windows fire."""

NEVER = -(2**62)
"""A watermark before every instant: nothing has fired."""

NO_TIME = NEVER - 1
"""The event time of a row that has none, where such rows count."""


@dataclass(frozen=True)
class Capture:
    """Where state accesses are recorded: in which directory, and as those of which operator, in words."""

    directory: str
    operator: str


@dataclass(frozen=True)
class WindowPlan:
    """All that an instance needs to know of its operator.

    Attributes
    ----------
    windows : Windows
        The window function, or what is there in place of one.
    packed : pyarrow.Schema
        The columns of a packed batch: keys, then inputs of the aggregates.
    keys : tuple of str
        Those that are keys.
    aggregation : Aggregation, UserFunction, WindowJoin or Processor
        What is computed.
    pattern : Pattern
        Which store serves it.
    schema : pyarrow.Schema
        The result: the window struct (none for a global window), the keys, the aggregates.
    options : Options
        Limits of the store.
    firing : Firing or None
        When windows fire more than once.
    idle_timeout : int or None
        When the watermark has not moved for so many microseconds of wall time, event time passes with the wall clock.
    identified_by : tuple of str or None
        The columns that tell keys apart, if they are not ``keys``. Those that are not packed come beside what is.
    capture : Capture or None
        Where the operator's state accesses are recorded, if they are.
    members : tuple of Member
        The patterns of an operator that has several over the same events.
    """

    windows: Windows
    packed: pa.Schema
    keys: tuple[str, ...]
    aggregation: Aggregation | UserFunction | WindowJoin | Processor
    pattern: Pattern
    schema: pa.Schema
    options: Options = field(default_factory=Options)
    firing: Firing | None = None
    idle_timeout: int | None = None
    identified_by: tuple[str, ...] | None = None
    capture: Capture | None = None
    members: tuple[Member, ...] = ()

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The keys that decide which virtual node has a row: of several patterns those that all have."""
        return self.keys[: self.members[0].shared_keys] if self.members else self.keys

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell keys apart."""
        return self.keys if self.identified_by is None else self.identified_by

    @property
    def patterns(self) -> str | None:
        """A short name for the patterns that it has, whatever their order; None if it has none."""
        if not self.members:
            return None
        return hashlib.sha256("\n".join(sorted(member.id for member in self.members)).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Member:
    """One of the patterns that share events.

    Attributes
    ----------
    name : str
        Its name.
    id : str
        What its state is called. Equal for patterns that can go on with each other's state.
    plan : WindowPlan
        The pattern alone: what of a packed batch it reads, and what it gives.
    shared_keys : int
        How many of its keys all patterns have; they come before the others.
    places : tuple of int
        In which columns of the results of all its own are: those before its keys, its other keys, its aggregates. See
        `in_common`.
    gap : int or None
        Of sessions: their gap in microseconds; None if its length varies, as that of a day does where clocks change.
    """

    name: str
    id: str
    plan: WindowPlan
    shared_keys: int
    places: tuple[int, ...]
    gap: int | None = None


def before_keys(windows: Windows) -> int:
    """How many columns results have before their keys: the window, and before it the time of the row if it is a row's.

    Examples
    --------
    >>> before_keys(Preceding(rows=3))
    2
    """
    return 2 if isinstance(windows, Preceding) else 1


Kind = TypeVar("Kind")


def in_common(patterns: Sequence[Sequence[Kind]], first: int) -> tuple[list[Kind], list[tuple[int, ...]]]:
    """The columns that the results of several patterns need, if those of one kind share columns; and the places of each.

    A result has values of one pattern only, so a column may belong to several.

    Parameters
    ----------
    patterns : sequence of sequence
        The kinds of each pattern's columns, such as types.
    first : int
        The place of the first column.

    Examples
    --------
    >>> in_common([["window", "double", "double"], ["window", "text", "double"]], 2)
    (['window', 'double', 'double', 'text'], [(2, 3, 4), (2, 5, 3)])
    """
    places: dict[tuple[Kind, int], int] = {}
    found = []
    for kinds in patterns:
        turns = [(kind, list(kinds[:place]).count(kind)) for place, kind in enumerate(kinds)]
        found.append(tuple(places.setdefault(turn, first + len(places)) for turn in turns))
    return [kind for kind, _ in places], found
