"""Combiners: they make fewer rows of those of a chunk before the shuffle, where that can be.

They are a buffer before the operator. For incremental aggregates it is partial ones, of rows that have all their windows in
common: those of a key and slice, those of a key whose window is the key, and rows of a key whose sessions overlap. For
deduplication it is the first row that a task has of each key.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import ROWS, Aggregation
from forebay.aggregates.grouping import Integers
from forebay.aggregates.overlaps import Sessions
from forebay.engine.plan import NEVER, NO_TIME, WindowPlan
from forebay.store.identity import identities, new_secret
from forebay.store.key_index import KeyIndex
from forebay.windows import END, HIGH, LOW, START, AlignedWindows, FirstRows, GlobalWindow, SessionWindows

PAYS, PAYS_IN_SESSIONS, PAYS_IN_DEDUPLICATION = 0.7, 0.5, 0.9
"""Combining goes on while it leaves at most this share of the rows. Sessions cost more to find than cells, and nothing is
computed of rows that deduplication leaves out."""

_LEAST_JUDGED = 1 << 17
"""Deduplication leaves out more rows the more keys it knows, so it is judged by so many rows at least."""

_MOST_KNOWN = 1 << 18
"""When deduplication knows more keys in a task, it forgets them."""

_CELL, _SESSION = "cell", "session"
_BY_ARRIVAL = frozenset({"first", "last"})
"""Functions that go by the order of rows, which those of a session lose when some are combined."""


@dataclass(frozen=True)
class Combiner:
    """Makes partial aggregates of rows that are in the same cell and of the same key.

    Attributes
    ----------
    plan : WindowPlan
        The operator, with what partial aggregates carry beside what is aggregated.
    fired_until : int or None
        Of sessions: rows whose own windows end by then (microseconds), with their allowed lateness before that, may be
        late, and are not combined. None where rows are combined whatever their windows are.
    """

    plan: WindowPlan
    fired_until: int | None = None

    def pays(self, rows: int, left: int) -> bool:
        """Whether to go on after a chunk of so many rows, of which so many partial aggregates were made."""
        return left <= rows * (PAYS if self.fired_until is None else PAYS_IN_SESSIONS)

    def combined(
        self, rows: pa.RecordBatch, cells: npt.NDArray[np.integer], owners: Integers
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.integer]]:
        """Partial aggregates, and their cells; ``owners`` has the hash of each row's key."""
        frame, by = pl.DataFrame(rows.append_column(_CELL, pa.array(cells))), _CELL
        if self.fired_until is not None:
            frame, by = self._in_sessions(frame, owners), _SESSION
        assert isinstance(self.plan.aggregation, Aggregation)
        partials = self.plan.aggregation.partial(frame, (by,))
        return arrow.batch_of(partials, without=(by, _CELL)), partials[_CELL].to_numpy()

    def _in_sessions(self, rows: pl.DataFrame, owners: Integers) -> pl.DataFrame:
        """Rows with the number of a session that they share with others of their key, and with its bounds.

        Those of a key that overlap are in one session, whatever else comes for it. A row that may be late is judged alone,
        and so is one that has another key than the first row of its session: their keys have the same hash.
        """
        starts, ends = rows[START].to_numpy(), rows[END].to_numpy()
        alone = ends <= self.fired_until
        while True:
            sessions = Sessions.found(owners, starts, ends, alone)
            strange = self._strange(rows, sessions)
            if not len(strange):
                break
            alone[strange] = True
        numbers, start, end = sessions.of, sessions.start[sessions.of], sessions.end[sessions.of]
        return rows.with_columns(pl.Series(_SESSION, numbers), pl.Series(START, start), pl.Series(END, end))

    def _strange(self, rows: pl.DataFrame, sessions: Sessions) -> Integers:
        """The rows that have another key than the first one of their session."""
        firsts = sessions.first[sessions.of]
        later = np.flatnonzero(firsts != np.arange(rows.height))
        differ = np.zeros(len(later), np.bool_)
        for key in self.plan.keys:
            differ |= rows[key][later].ne_missing(rows[key][firsts[later]]).to_numpy()
        return later[differ]


@dataclass
class FirstRowsOfKeys:
    """Keeps the first row of each key that cannot be late, and all rows that may be late; others of the key are left out.

    The operator finds out whether a row that may be late is, and whether the key has come before, to another task or in an
    earlier micro-batch.

    Attributes
    ----------
    plan : WindowPlan
        The operator.
    fired_until : int
        Rows whose time is after that (microseconds), or that have none, are not late.
    """

    plan: WindowPlan
    fired_until: int
    _known: KeyIndex = field(default_factory=KeyIndex)
    _rows: int = 0
    _left: int = 0

    def pays(self, rows: int, left: int) -> bool:
        """Whether to go on after a chunk of so many rows, of which so many were kept."""
        self._rows += rows
        self._left += left
        return self._rows < _LEAST_JUDGED or self._left <= self._rows * PAYS_IN_DEDUPLICATION

    def combined(
        self, rows: pa.RecordBatch, cells: npt.NDArray[np.integer], owners: Integers
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.integer]]:
        """The rows that are kept, in order of their cells, which are virtual nodes; and these.

        Those of a virtual node have as many rows together as came for it, so that the operator counts all. A row that may be
        late has no number of rows: it stands for itself alone.
        """
        times = rows[START].to_numpy()
        kept = (times <= self.fired_until) & (times != NO_TIME)
        judged = np.flatnonzero(~kept)
        sizes = np.zeros(rows.num_rows, np.int64)
        keys = rows.select(self.plan.identity)
        sizes[judged] = self._sizes(keys.take(pa.array(judged)) if kept.any() else keys, cells[judged])
        places = np.flatnonzero(kept | (sizes > 0))
        places = places[np.argsort(cells[places], kind="stable")]
        return rows.append_column(ROWS, pa.array(sizes, mask=sizes == 0)).take(pa.array(places)), cells[places]

    def _sizes(self, keys: pa.RecordBatch, vnodes: npt.NDArray[np.integer]) -> Integers:
        """For how many rows of its virtual node each row stands: none, if it is not the first of its key.

        The first row of a virtual node stands for all that are left out, though its own key may be known.
        """
        if len(self._known) > _MOST_KNOWN:
            self._known, self._rows, self._left = KeyIndex(), 0, 0
        high, low = identities(keys.columns, keys.num_rows, _SECRET)
        _, first = self._known.place_first(high, low)
        sizes = first.astype(np.int64)
        _, begins, of = np.unique(vnodes, return_index=True, return_inverse=True)
        sizes[begins] += np.bincount(of[~first], minlength=len(begins))
        return sizes


_SECRET = new_secret()
"""Keys come from outside, and so may keys that are chosen to have one identity without a secret."""


def combiner_of(
    plan: WindowPlan, *, updating: bool, hashed: bool, fired_until: int | None
) -> Combiner | FirstRowsOfKeys | None:
    """What combines the rows of an operator; None if they cannot be, or must not be.

    ``fired_until`` is the watermark (microseconds) up to which windows have fired, or a later one; None if it is not known.
    Rows up to it may be late. With ``hashed`` Spark's hashes of keys come along, which of unaligned windows only rows can
    carry.
    """
    if plan.pattern is not Pattern.RMW or plan.capture is not None:
        return None
    assert isinstance(plan.aggregation, Aggregation)
    if isinstance(plan.windows, AlignedWindows):
        return Combiner(_carrying(plan, HIGH, LOW) if updating and hashed else plan)
    if hashed:
        return None
    if isinstance(plan.windows, GlobalWindow):
        return Combiner(plan)
    if isinstance(plan.windows, FirstRows):
        return None if fired_until is None else FirstRowsOfKeys(plan, fired_until)
    by_arrival = any(aggregate.function in _BY_ARRIVAL for aggregate in plan.aggregation.aggregates)
    sessions = isinstance(plan.windows, SessionWindows) and plan.idle_timeout is None and not by_arrival
    if not sessions or fired_until is None:
        return None
    lateness = plan.firing.allowed_lateness if plan.firing else 0
    of_sessions = replace(plan, aggregation=replace(plan.aggregation, keys=()))  # each of which is of one key
    return Combiner(_carrying(of_sessions, *plan.keys, START, END, _CELL), max(NEVER, fired_until - lateness))


def _carrying(plan: WindowPlan, *columns: str) -> WindowPlan:
    """The plan with partial aggregates that also have some columns that are equal in all of their rows."""
    assert isinstance(plan.aggregation, Aggregation)
    return replace(plan, aggregation=replace(plan.aggregation, carried=columns))
