"""Several patterns over the same events: one instance that stores each event once, and runs every pattern's windows.

Windows of a pattern whose aggregates need all rows are references to events ("Exploring Shared State in Key-Value Store for
Window-Based Multi-Pattern Streaming Analytics", section 3.2); aligned ones are read straight from the slices in which events
lie. A pattern whose aggregates are all incremental keeps its partial aggregates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.engine.aligned import AlignedInstance, aligned_store
from forebay.engine.counts import CountInstance
from forebay.engine.instance import Instance, counted, require_same_time
from forebay.engine.observer import Observer
from forebay.engine.plan import NEVER, Member, WindowPlan
from forebay.engine.sessions import SessionInstance
from forebay.engine.stored_form import StoredForm
from forebay.patterns import Pattern
from forebay.store.aligned import SLICE
from forebay.store.aligned_events import AlignedEvents
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk
from forebay.store.events import EVENT, ORDINAL, EventLog, EventSlice, References
from forebay.store.extent_log import ExtentLog
from forebay.store.filenames import Version
from forebay.store.identity import identities
from forebay.store.metrics import Metrics
from forebay.store.references import ReferenceStore
from forebay.store.unaligned import UnalignedStore
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
    SessionWindows,
    Times,
    bound_of,
)

Mask = npt.NDArray[np.bool_]


def slicing_of(windows: list[AlignedWindows]) -> AlignedWindows | None:
    """The longest slices that no bound of any of several aligned windows divides.

    Examples
    --------
    >>> slicing_of([AlignedWindows(60, 20), AlignedWindows(90, 90, 15)])
    AlignedWindows(size=5, slide=5, offset=0)
    """
    if not windows:
        return None
    offset = windows[0].offset
    lengths = [each.slice_length for each in windows]
    length = math.gcd(*lengths, *(each.offset - offset for each in windows))
    return AlignedWindows(length, length, offset % length)


@dataclass
class _Running:
    """A pattern at work, and the store of its own that it has."""

    member: Member
    position: int
    instance: Instance
    store: UnalignedStore | None = None
    events: AlignedEvents | None = None

    @property
    def plan(self) -> WindowPlan:
        return self.member.plan

    @property
    def holistic(self) -> bool:
        return self.plan.pattern is not Pattern.RMW


class SharedInstance:
    """Several patterns over the same events; see `forebay.engine.instance.Instance`.

    Its parameters are those of `forebay.engine.open.open_instance`. The state of patterns that the plan does not have any
    more is given up when it is opened; new patterns begin without state of their own, but aligned windows of holistic
    aggregates have the events that are still stored.
    """

    def __init__(
        self,
        plan: WindowPlan,
        directory: Path,
        version: Version | None,
        fired_until: int = NEVER,
        archive: Archive | None = None,
        disk: Disk = LOCAL,
        observer: Observer | None = None,
    ) -> None:
        self._plan, self._directory, self._fired_until = plan, directory, fired_until
        self._log = ExtentLog(directory, version, plan.options, archive, disk)
        require_same_time(self._log.base, directory, fired_until)
        self.counters = self._log.base.counters
        size = plan.options.write_buffer_bytes // (len(plan.members) + 1)
        self._options = replace(plan.options, write_buffer_bytes=max(1, size))
        holistic = [member.plan for member in plan.members if member.plan.pattern is not Pattern.RMW]
        self._columns = _columns(plan, holistic)
        self._events = self._opened_events([each.windows for each in holistic if isinstance(each.windows, AlignedWindows)])
        self._changed = self._give_up()
        self._running = [self._start(position, member) for position, member in enumerate(plan.members)]

    def _opened_events(self, aligned: list[AlignedWindows]) -> EventLog:
        fields = [self._plan.packed.field(name) for name in self._columns]
        form = StoredForm(pa.schema([*fields, (TIME, pa.int64()), (ORDINAL, pa.uint32())]))
        return EventLog(self._directory, self._log, slicing_of(aligned), self._plan.options, form)

    def _give_up(self) -> bool:
        """Forget the state of patterns that are not there any more; whether there was any."""
        known = {_part(member) for member in self._plan.members}
        gone = [name for name in self._log.parts if name.startswith(_PARTS) and name not in known]
        for name in gone:
            store = ReferenceStore(self._directory, self._log.part(name), self._options, self._events, [])
            if any(EVENT in schema.names for schema in store.schemas):
                self._events.release(store.references)
            self._log.drop_part(name)
        return bool(gone)

    def _start(self, position: int, member: Member) -> _Running:
        plan, part, options = member.plan, self._log.part(_part(member)), self._options
        plan = replace(plan, options=options)
        place = (self._directory, None, self._fired_until, None, LOCAL, None)
        if isinstance(plan.windows, AlignedWindows):
            if plan.pattern is Pattern.RMW:
                return _Running(member, position, AlignedInstance(plan, *place, aligned_store(plan, *place[:2], log=part)))
            seen = AlignedEvents(self._events, part, plan.windows, plan.packed.names, plan.keys, options, self._fired_until)
            return _Running(member, position, AlignedInstance(plan, *place, seen), events=seen)
        kind = CountInstance if isinstance(plan.windows, CountWindows) else SessionInstance
        store: UnalignedStore
        if plan.pattern is Pattern.RMW:
            store = UnalignedStore(self._directory, None, options, form=kind.form_of(plan), log=part)
        else:
            store = ReferenceStore(self._directory, part, options, self._events, plan.packed.names, kind.slices)
            plan = replace(plan, packed=pa.schema([(EVENT, pa.int64())]))
        return _Running(member, position, kind(plan, *place, store), store)

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
            slices = windows.slice_starts(times)
            last, first = windows.last_window(slices), windows.first_window(slices)
            return last + windows.size > self._fired_until, first + windows.size > self._fired_until
        if isinstance(windows, CountWindows):
            all_ = np.ones(batch.num_rows, np.bool_)
            return all_, all_
        if isinstance(windows, SessionWindows):
            open_ = times + each.member.gap > self._fired_until
        else:
            open_ = batch[bound_of(END, each.position)].to_numpy() > self._fired_until
        return open_, open_

    def _store(self, batch: pa.RecordBatch, times: Times, taken: Mask) -> References:
        """Store events; references to them, -1 for those that are not stored."""
        references = np.full(batch.num_rows, -1, np.int64)
        events = batch.select(self._columns)
        if taken.all():
            return self._events.append(times, events)
        references[taken] = self._events.append(times[taken], events.filter(pa.array(taken)))
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
            assert self._log.base.secret is not None
            high, low = identities([batch[name] for name in by], batch.num_rows, self._log.base.secret)
            keys[by] = pa.array(high), pa.array(low)
        columns |= dict(zip((HIGH, LOW), keys[by], strict=True))
        if isinstance(windows, SessionWindows):
            columns |= {START: batch[TIME], END: pa.array(times + each.member.gap)}
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
        """Results of a pattern as the operator gives them: its name, the keys, and the rest as a struct of its own."""
        schema, rows = self._plan.schema, batch.num_rows
        rest = [batch.column(0), *batch.columns[1 + member.shared_keys :]]
        columns = [pa.array([member.name] * rows, schema.field(0).type), *batch.columns[1 : 1 + member.shared_keys]]
        for other, field in zip(self._plan.members, list(schema)[1 + member.shared_keys :], strict=True):
            of_it = other is member
            columns.append(
                pa.StructArray.from_arrays(rest, fields=list(field.type)) if of_it else pa.nulls(rows, field.type)
            )
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def commit(self, batch: int | None = None) -> Version | None:
        """Make the state of all patterns after this micro-batch the next version; the same one if nothing has changed."""
        base = self._log.base
        if self.counters == base.counters and not base.stale and not self._changed:
            return base.version
        for each in self._running:
            each.instance.commit(batch)
        holders = [each.store for each in self._running if isinstance(each.store, ReferenceStore)]
        self._events.settle(
            self._needed, len(holders), lambda: np.concatenate([holder.references for holder in holders]), batch
        )
        self._log.compact(self._options.max_space_amplification)
        self._changed = False
        return self._log.commit(self._fired_until, self.counters, batch)

    def _needed(self, each: EventSlice) -> bool:
        """Whether some aligned window that has not fired has events of a slice."""
        return any(running.events.needs(each.last) for running in self._running if running.events is not None)

    @property
    def due(self) -> int:
        if self._log.base.stale:
            return NEVER
        return min(each.instance.due for each in self._running)

    @property
    def metrics(self) -> Metrics:
        """What the stores have done since they were opened."""
        found = sum((each.instance.metrics for each in self._running), self._events.metrics)
        self._log.count_into(found)
        return replace(found, events=self._events.stored)

    def close(self) -> None:
        """Let go of files, whether the batch was committed or not."""
        for each in self._running:
            if each.store is not None:
                each.store.merge = None
        self._log.close()

    def _count(self, **more: int) -> None:
        self.counters = counted(self.counters, **more)


_PARTS = "pattern:"


def _part(member: Member) -> str:
    """The name of the part of the log that has a pattern's state."""
    return _PARTS + member.id


def _columns(plan: WindowPlan, holistic: list[WindowPlan]) -> list[str]:
    """The columns of a packed batch that patterns read from events."""
    read = {name for each in holistic for name in each.packed.names}
    return [name for name in plan.packed.names if name in read]
