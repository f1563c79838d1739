"""The continuous join: a row is valid until an event ends the life of its key (Gadget, section 2.2).

Events are taken in the order of their times, as soon as the watermark has passed them. Until then they wait in windows of
their key that follow each other closely; from then on in the window of what is valid of their side, which grows and goes as
a whole. It is read when a row of the other side comes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.engine.instance import Opening
from forebay.engine.plan import END_OF_TIME, WindowPlan
from forebay.engine.row_join import JoinInstance, Places, Rows
from forebay.store.key_index import Slots
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import ENDLESS, HIGH, INSTANT, LOW, Lives, Times

_KEY, _LIFE, _LIVES = "key", "life", "lives"
_ANY_TIME = -END_OF_TIME, END_OF_TIME


class ContinuousJoinInstance(JoinInstance):
    """Rows of two sides. A pair is emitted when the watermark has passed the later of its rows."""

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        assert isinstance(plan.windows, Lives)
        self._windows = plan.windows
        super().__init__(plan, opening, store)

    def _due(self) -> int:
        return self._store.index.earliest() - self._windows.granularity

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        arrived = self._arrived()
        while arrived:
            fresh = arrived.pop(0).filter(pl.all_horizontal(pl.col(self._plan.keys).is_not_null()))
            self._place(fresh, *self._windows.waiting(fresh[INSTANT].to_numpy()))
        if watermark <= self._fired_until:  # what waits within the granularity after it waits on
            return
        due = self._store.index.due(watermark + self._windows.granularity)
        for slots in self._loadable(due):  # in the order of their ends, as each key must have it
            found = self._store.get(slots)
            high, low = self._store.index.identities(found[SLOT].to_numpy())
            identity = pl.Series(HIGH, high), pl.Series(LOW, low)
            frame = found.drop(SLOT).with_columns(*identity)
            self._store.remove(slots)
            yield from self._passed(frame.filter(pl.col(INSTANT) <= watermark))
            waiting = frame.filter(pl.col(INSTANT) > watermark)
            self._place(waiting, *self._windows.waiting(waiting[INSTANT].to_numpy()))
        self._count(windows_fired=len(due))
        self._fired_until = max(self._fired_until, watermark)

    def _passed(self, frame: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """Rows that the watermark has passed meet each other and what is valid; those that are valid then are kept."""
        if not frame.height:
            return
        known, keys = self._numbered(frame)
        frame = _with_lives(frame.with_columns(pl.Series(_KEY, keys)), self._windows.until)
        life = frame[_LIFE].to_numpy()
        stride = int(life.max()) + 1
        mine = self._split(frame, frame[_KEY].to_numpy() * stride + life)
        yield from self._meet(*mine, *_ANY_TIME)
        slots, owners = self._store.index.windows_of(*known)
        valid = self._store.index.ends(slots) == ENDLESS
        slots, owners = slots[valid], owners[valid]
        for some in self._loadable(slots[self._wanted(slots, owners * stride, mine)]):
            found = self._store.get(some)
            theirs = self._split(found, owners[np.searchsorted(slots, found[SLOT].to_numpy())] * stride)
            yield from self._meet(mine[0], theirs[1], *_ANY_TIME)
            yield from self._meet(theirs[0], mine[1], *_ANY_TIME)
        ended = frame.group_by(_KEY).agg(pl.col(self._windows.until).any())
        over = np.isin(owners, ended.filter(pl.col(self._windows.until))[_KEY].to_numpy())
        self._store.remove(slots[over])
        self._count(windows_fired=int(np.count_nonzero(over)))
        kept = frame.filter(pl.col(_LIFE) == pl.col(_LIVES))
        self._place(kept, *self._windows.valid(kept[self._join.side].cast(pl.Int64).to_numpy()))

    def _wanted(self, slots: Slots, keys: Places, mine: tuple[Rows, Rows]) -> npt.NDArray[np.bool_]:
        """Which windows of valid rows have rows of a side that ours of the other side with their keys may meet."""
        sides = self._windows.sides(self._store.index.windows(slots)[:, 0])
        wanted = np.zeros(len(slots), np.bool_)
        for side, rows in enumerate(mine):
            wanted |= (sides != side) & np.isin(keys, rows.keys)
        return wanted

    def _place(self, rows: pl.DataFrame, starts: Times, ends: Times) -> None:
        """Store rows in windows of their keys."""
        self._keep(rows, self._store.index.place_exact(rows[HIGH].to_numpy(), rows[LOW].to_numpy(), starts, ends))

    def _keep(self, rows: pl.DataFrame, slots: Slots) -> None:
        if rows.height:
            self._append(self._as_stored(rows), slots)


def _with_lives(frame: pl.DataFrame, until: str) -> pl.DataFrame:
    """The rows with the number of the life of their key that they are in, and how many its ends have begun."""
    ends = frame.filter(pl.col(until)).select(_KEY, INSTANT).unique().sort(_KEY, INSTANT)
    before = (pl.col(INSTANT).rank("ordinal").over(_KEY)).cast(pl.Int64).alias(_LIFE)
    counted = ends.with_columns(before)
    lives = counted.group_by(_KEY).agg(pl.col(_LIFE).max().alias(_LIVES))
    frame = frame.sort(INSTANT, maintain_order=True)
    joined = frame.join_asof(
        counted.sort(INSTANT), on=INSTANT, by=_KEY, strategy="backward", allow_exact_matches=False, check_sortedness=False
    )
    joined = joined.join(lives, on=_KEY, how="left", maintain_order="left")
    return joined.with_columns(pl.col(_LIFE, _LIVES).fill_null(0))
