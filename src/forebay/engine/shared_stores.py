"""The stores of patterns that share events: all of them in one log, so that they have one version."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.engine.aligned import AlignedInstance, aligned_store
from forebay.engine.counts import CountInstance
from forebay.engine.instance import Instance, Opening
from forebay.engine.plan import Member, WindowPlan
from forebay.engine.preceding import PrecedingInstance
from forebay.engine.sessions import SessionInstance
from forebay.engine.stored_form import StoredForm
from forebay.store.aligned import AlignedStore
from forebay.store.aligned_events import AlignedEvents
from forebay.store.archive import Archive
from forebay.store.disk import Disk
from forebay.store.events import EVENT, ORDINAL, EventLog, Mask
from forebay.store.extent_log import ExtentLog
from forebay.store.filenames import Version
from forebay.store.form import Form
from forebay.store.manifest import Counters, Manifest
from forebay.store.metrics import Metrics
from forebay.store.references import ReferenceStore
from forebay.store.unaligned import UnalignedStore
from forebay.windows import TIME, AlignedWindows, CountWindows, Preceding, SessionWindows, Times


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


class SharedStores:
    """The stores that patterns share, and those that each has, in one log: what a worker keeps between micro-batches.

    Parameters are those of `forebay.engine.open.open_instance` of the same names.

    Attributes
    ----------
    patterns_changed : bool
        Whether a pattern has gone or come, which is to be committed whatever rows come.
    """

    def __init__(
        self, plan: WindowPlan, directory: Path, version: Version | None, archive: Archive | None, disk: Disk
    ) -> None:
        self.directory, self.options = directory, plan.options
        self.form: Form | None = SharedForm(plan)
        self._plan = plan
        self._log = ExtentLog(directory, version, plan.options, archive, disk)
        shares = {name: getattr(plan.options, name) // (len(plan.members) + 1) for name in _BUFFERS}
        self.each = replace(plan.options, **{name: max(1, share) for name, share in shares.items()})
        holistic = [member.plan for member in plan.members if member.plan.pattern is not Pattern.RMW]
        read = {name for each in holistic for name in each.packed.names}
        self.columns = [name for name in plan.packed.names if name in read]
        fields = [plan.packed.field(name) for name in self.columns]
        form = StoredForm(pa.schema([*fields, (TIME, pa.int64()), (ORDINAL, pa.uint32())]))
        aligned = [each.windows for each in holistic if isinstance(each.windows, AlignedWindows)]
        self.events = EventLog(directory, self._log, slicing_of(aligned), self.each, form)
        self.patterns_changed = self._give_up()
        self._own = {member.id: self._opened(member) for member in plan.members}

    @property
    def changed(self) -> bool:
        """Whether there is something to commit: patterns have changed, or windows have."""
        return self.patterns_changed or any(isinstance(each, UnalignedStore) and each.changed for each in self._own.values())

    def catch_up(self, version: Version, archive: Archive | None, disk: Disk) -> bool:
        """Become another version, which another process has made; of key indexes only what has changed is read.

        It is always possible: a store that cannot follow is opened anew.
        """
        self._log = ExtentLog(self.directory, version, self.options, archive, disk)
        self.events.follow(self._log)
        self.patterns_changed = self._give_up()
        for member in self._plan.members:
            store = self._own[member.id]
            if not (isinstance(store, UnalignedStore) and store.follow(self._log.part(_part(member)))):
                self._own[member.id] = self._opened(member)
        return True

    def _give_up(self) -> bool:
        """Forget the state of patterns that are not there any more; whether there was any."""
        known = {_part(member) for member in self._plan.members}
        gone = [name for name in self._log.parts if name.startswith(_PARTS) and name not in known]
        for name in gone:
            store = ReferenceStore(self.directory, self._log.part(name), self.each, self.events, [])
            if any(EVENT in schema.names for schema in store.schemas):
                self.events.release(store.references)
            self._log.drop_part(name)
        return bool(gone)

    def _opened(self, member: Member) -> AlignedStore | UnalignedStore | None:
        plan, part = member.plan, self._log.part(_part(member))
        incremental = plan.pattern is Pattern.RMW
        if isinstance(plan.windows, AlignedWindows):
            return aligned_store(replace(plan, options=self.each), self.directory, None, log=part) if incremental else None
        kind = _kind(plan)
        options = self.each if kind.predicted else replace(self.each, read_batch_ratio=0)
        if incremental:
            return UnalignedStore(self.directory, None, options, form=kind.form_of(plan), log=part)
        return ReferenceStore(self.directory, part, options, self.events, plan.packed.names, kind.slices)

    def start(self, member: Member, fired_until: int) -> tuple[Instance, AlignedEvents | ReferenceStore | None]:
        """A pattern at work; and what it sees events through, if it needs events."""
        plan, store = replace(member.plan, options=self.each), self._own[member.id]
        opening = Opening(self.directory, None, fired_until)
        if isinstance(store, AlignedStore):
            return AlignedInstance(plan, opening, store), None
        if isinstance(plan.windows, AlignedWindows):
            part = self._log.part(_part(member))
            seen = AlignedEvents(self.events, part, plan.windows, plan.packed.names, plan.keys, self.each, fired_until)
            return AlignedInstance(plan, opening, seen), seen
        if isinstance(store, ReferenceStore):
            return _kind(plan)(replace(plan, packed=pa.schema([(EVENT, pa.int64())])), opening, store), store
        return _kind(plan)(plan, opening, store), None

    def begins(self, member: Member) -> bool:
        """Whether the last version does not have a pattern that is to take the events which are there.

        These must have all its columns. Aligned windows with holistic aggregates take nothing: they read events when they
        fire.
        """
        plan = member.plan
        if _part(member) in self.base.parts or not len(self.events.slices):
            return False
        if isinstance(plan.windows, AlignedWindows) and plan.pattern is not Pattern.RMW:
            return False
        if isinstance(plan.windows, SessionWindows) and member.gap is None:
            return False
        return set(plan.packed.names) <= self.events.columns.intersection(self.columns)

    @property
    def base(self) -> Manifest:
        """The version that was opened or committed last."""
        return self._log.base

    @property
    def holders(self) -> list[ReferenceStore]:
        """Those that have references."""
        return [store for store in self._own.values() if isinstance(store, ReferenceStore)]

    def commit(self, needed: Callable[[Times], Mask], fired_until: int, counters: Counters, batch: int | None) -> Version:
        """Make what the stores hold the next version."""
        holders = self.holders
        self.events.write(needed, len(holders), lambda: np.concatenate([holder.references for holder in holders]))
        self._log.compact(self.options.max_space_amplification)
        self.patterns_changed = False
        return self._log.commit(fired_until, counters, batch)

    @property
    def metrics(self) -> Metrics:
        """What the log and the events have done."""
        found = replace(self.events.metrics, events=self.events.stored)
        self._log.count_into(found)
        return found

    @property
    def memory_bytes(self) -> int:
        """Size of what is in memory."""
        unaligned = [store for store in self._own.values() if isinstance(store, UnalignedStore)]
        return self.events.memory_bytes + sum(store.memory_bytes for store in unaligned)

    def use(self, disk: Disk) -> None:
        """Work on another disk from now on: one on which the same directory is."""
        self._log.use(disk)

    def rest(self) -> None:
        """Let go of the batch that is over."""
        for store in self._own.values():
            if isinstance(store, UnalignedStore):
                store.rest()

    def close(self) -> None:
        """Let go of files."""
        self._log.close()


class SharedForm:
    """What the stores of patterns are of; stores of equal ones are interchangeable."""

    def __init__(self, plan: WindowPlan) -> None:
        self._id = plan.packed, tuple((member.id, _columns(member.plan)) for member in plan.members)

    @property
    def id(self) -> Hashable:
        """Equal for equal forms."""
        return self._id

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A stored batch; each store has a form of its own."""
        return batch


def _columns(plan: WindowPlan) -> Hashable:
    """The columns of a pattern's own state, in their order: of partial aggregates if it keeps those."""
    if plan.pattern is not Pattern.RMW:
        return plan.packed, ()
    assert isinstance(plan.aggregation, Aggregation)
    return plan.packed, tuple(plan.aggregation.columns)


def _kind(plan: WindowPlan) -> type[SessionInstance | CountInstance | PrecedingInstance]:
    if isinstance(plan.windows, Preceding):
        return PrecedingInstance
    return CountInstance if isinstance(plan.windows, CountWindows) else SessionInstance


_BUFFERS = ("write_buffer_bytes", "prefetch_bytes")
"""What the patterns and the log of events share evenly."""

_PARTS = "pattern:"


def _part(member: Member) -> str:
    """The name of the part of the log that has a pattern's state."""
    return _PARTS + member.id
