"""Several patterns over the same events: one instance that stores each event once, and runs every pattern's windows.

Windows of a pattern whose aggregates need all rows are references to events ("Exploring Shared State in Key-Value Store for
Window-Based Multi-Pattern Streaming Analytics", section 3.2); aligned ones are read straight from the slices in which events
lie. A pattern whose aggregates are all incremental keeps its partial aggregates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from forebay.access_patterns import Pattern
from forebay.engine.assigning import placement
from forebay.engine.instance import Counting, Instance, Opening, require_same_time
from forebay.engine.plan import NEVER, Member, WindowPlan, before_keys
from forebay.engine.shared_stores import SharedForm, SharedStores
from forebay.store import open_stores
from forebay.store.aligned_events import AlignedEvents
from forebay.store.event_references import References
from forebay.store.events import EVENT, Mask
from forebay.store.filenames import Version
from forebay.store.identity import identities
from forebay.store.manifest import Counters
from forebay.store.metrics import Metrics
from forebay.store.partitions import SLICE
from forebay.store.references import ReferenceStore
from forebay.windows import (
    END,
    ETT,
    HIGH,
    LOW,
    START,
    TIME,
    AlignedWindows,
    CountWindows,
    CustomWindows,
    Preceding,
    SessionWindows,
    Times,
    bound_of,
)


@dataclass
class _Running:
    """A pattern at work, and what it sees events through."""

    member: Member
    position: int
    instance: Instance
    seen: AlignedEvents | ReferenceStore | None

    @property
    def plan(self) -> WindowPlan:
        return self.member.plan

    @property
    def holistic(self) -> bool:
        return self.plan.pattern is not Pattern.RMW


class SharedInstance(Counting):
    """Several patterns over the same events; see `forebay.engine.instance.Instance`.

    The state of patterns that the plan does not have any more is given up when it is opened. New patterns begin with the
    events that are still stored, if these have their columns.
    """

    def __init__(self, plan: WindowPlan, opening: Opening) -> None:
        self._plan, self._fired_until = plan, opening.fired_until
        at, archive, disk = (opening.directory, opening.version), opening.archive, opening.disk
        kept = open_stores.taken(*at, plan.options, archive, SharedForm(plan), disk)
        self._stores = kept if isinstance(kept, SharedStores) else SharedStores(plan, *at, archive, disk)
        require_same_time(self._stores.base, opening)
        self._committed = False
        self._places = sorted({place for member in plan.members for place in member.places})
        self.counters = self._stores.base.counters
        self._running = [self._started(member, position) for position, member in enumerate(plan.members)]

    def _started(self, member: Member, position: int) -> _Running:
        """A pattern at work. One that is new takes the events that are there; windows that have ended by now fire unseen."""
        begins = self._stores.begins(member)
        each = _Running(member, position, *self._stores.start(member, NEVER if begins else self._fired_until))
        if begins:
            for references, stored in self._stores.events.everything():
                batch = _bounded(stored, member, position)
                each.instance.ingest(self._rows(each, batch, batch[TIME].to_numpy(), references, {}))
            for _ in each.instance.fire(self._fired_until):
                pass
            each.instance.counters = Counters(rows_in=each.instance.counters.rows_in)
            self._stores.patterns_changed = True
        return each

    def ingest(self, batch: pa.RecordBatch, *, partial: bool = False) -> None:
        """Take events. Each is stored once if a pattern with holistic aggregates takes it."""
        times = batch[TIME].to_numpy()
        takes = [self._takes(each, batch, times) for each in self._running]
        some = reduce(np.logical_or, [some for some, _ in takes])
        every = reduce(np.logical_and, [every for _, every in takes])
        self._count(
            rows_in=batch.num_rows,
            rows_late=int(np.count_nonzero(~some)),
            rows_partly_late=int(np.count_nonzero(some & ~every)),
        )
        masks = [some for each, (some, _) in zip(self._running, takes, strict=True) if each.holistic]
        references = self._store(batch, times, reduce(np.logical_or, masks)) if masks else np.empty(0, np.int64)
        keys: dict[tuple[str, ...], tuple[pa.Array, pa.Array]] = {}
        for each in self._running:
            each.instance.ingest(self._rows(each, batch, times, references, keys))

    def _takes(self, each: _Running, batch: pa.RecordBatch, times: Times) -> tuple[Mask, Mask]:
        """Which events some window of a pattern takes, and which all of them do."""
        windows = each.plan.windows
        if isinstance(windows, AlignedWindows):
            open_from = windows.open_from(self._fired_until)
            return times >= open_from, windows.first_window(windows.slice_starts(times)) >= open_from
        if isinstance(windows, CountWindows):
            all_ = np.ones(batch.num_rows, np.bool_)
            return all_, all_
        ends = times if isinstance(windows, Preceding) else batch[bound_of(END, each.position)].to_numpy()
        open_ = ends > self._fired_until
        return open_, open_

    def _store(self, batch: pa.RecordBatch, times: Times, taken: Mask) -> References:
        """Store events; references to them, -1 for those that are not stored."""
        references = np.full(batch.num_rows, -1, np.int64)
        events = batch.select(self._stores.columns)
        if taken.all():
            return self._stores.events.append(times, events)
        references[taken] = self._stores.events.append(times[taken], events.filter(pa.array(taken)))
        return references

    def _rows(
        self,
        each: _Running,
        batch: pa.RecordBatch,
        times: Times,
        references: References,
        keys: dict[tuple[str, ...], tuple[pa.Array, pa.Array]],
    ) -> pa.RecordBatch:
        """What a pattern takes of a batch."""
        windows = each.plan.windows
        if isinstance(windows, AlignedWindows):
            slices = windows.slice_starts(times)
            if each.holistic:
                return pa.record_batch({SLICE: pa.array(np.sort(slices))})
            return batch.select(each.plan.packed.names).append_column(SLICE, pa.array(slices))
        columns = {EVENT: pa.array(references)} if each.holistic else {name: batch[name] for name in each.plan.packed.names}
        shared = isinstance(windows, CustomWindows) and windows.shared
        by = () if shared else each.plan.keys
        if by not in keys:
            assert self._stores.base.secret is not None
            high, low = identities([batch[name] for name in by], batch.num_rows, self._stores.base.secret)
            keys[by] = pa.array(high), pa.array(low)
        columns |= dict(zip((HIGH, LOW), keys[by], strict=True))
        if isinstance(windows, Preceding):
            columns |= {START: batch[TIME]}
        elif isinstance(windows, SessionWindows):
            columns |= {START: batch[TIME], END: batch[bound_of(END, each.position)]}
        elif isinstance(windows, CustomWindows):
            bounds = {name: bound_of(name, each.position) for name in (START, END, ETT)}
            columns |= {name: batch[column] for name, column in bounds.items() if column in batch.schema.names}
        return pa.record_batch(columns)

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Results of every pattern's windows that are due at ``watermark`` (microseconds)."""
        for each in self._running:
            before = each.instance.counters
            for batch in each.instance.fire(watermark):
                yield self._told(each.member, batch)
            now = each.instance.counters
            self._count(windows_fired=now.windows_fired - before.windows_fired, rows_out=now.rows_out - before.rows_out)
        self._fired_until = max(self._fired_until, watermark)

    def _told(self, member: Member, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Results of a pattern as the operator gives them: its name, the common keys, its own columns in their places."""
        schema, rows = self._plan.schema, batch.num_rows
        first = before_keys(member.plan.windows)
        further = first + member.shared_keys
        own = dict(zip(member.places, [*batch.columns[:first], *batch.columns[further:]], strict=True))
        columns = [pa.array([member.name], schema.field(0).type).take(pa.array(np.zeros(rows, np.int8)))]
        columns += batch.columns[first:further]
        columns += [own[place] if place in own else pa.nulls(rows, schema.field(place).type) for place in self._places]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def commit(self, batch: int | None = None) -> Version | None:
        """Make the state of all patterns after this micro-batch the next version; the same one if nothing has changed."""
        base = self._stores.base
        version = base.version
        if self.counters != base.counters or base.stale or self._stores.changed:
            for each in self._running:
                each.instance.commit(batch)
            version = self._stores.commit(self._needed, self._fired_until, self.counters, batch)
        self._committed = True
        return version

    def _needed(self, lasts: Times) -> Mask:
        """Whether some aligned window that has not fired has events of slices whose last events are of these times."""
        aligned = [each.seen for each in self._running if isinstance(each.seen, AlignedEvents)]
        return reduce(np.logical_or, [seen.needs(lasts) for seen in aligned], np.zeros(len(lasts), np.bool_))

    @property
    def due(self) -> int:
        if self._stores.base.stale:
            return NEVER
        return min(each.instance.due for each in self._running)

    @property
    def metrics(self) -> Metrics:
        """What the stores have done since they were opened."""
        return sum((each.instance.metrics for each in self._running), self._stores.metrics)

    def close(self) -> None:
        """Let go of files, whether the batch was committed or not."""
        self._stores.rest()
        self._stores.close()
        if self._committed:
            open_stores.keep(self._stores)


def _bounded(events: pa.RecordBatch, member: Member, position: int) -> pa.RecordBatch:
    """Stored events with the bounds of a pattern's windows, as pack hands events over."""
    windows, times = member.plan.windows, events[TIME].to_numpy()
    columns: dict[str, pa.Array] = {}
    if isinstance(windows, SessionWindows):
        columns = {END: pa.array(times + member.gap)}
    elif isinstance(windows, CustomWindows):
        columns = placement(windows, times)
    for name, values in columns.items():
        events = events.append_column(bound_of(name, position), values)
    return events
