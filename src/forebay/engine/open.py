"""Which instance runs a plan: the only module that knows all kinds of operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forebay.engine.aligned import AlignedInstance
from forebay.engine.buffer import BufferInstance
from forebay.engine.continuous_join import ContinuousJoinInstance
from forebay.engine.counts import CountInstance
from forebay.engine.dedupe import DedupeInstance
from forebay.engine.instance import Instance, Opening
from forebay.engine.interval_join import IntervalJoinInstance
from forebay.engine.observer import Observer
from forebay.engine.panes import PaneInstance
from forebay.engine.plan import WindowPlan
from forebay.engine.preceding import PrecedingInstance
from forebay.engine.sessions import SessionInstance
from forebay.engine.shared import SharedInstance
from forebay.engine.updates import UpdateInstance
from forebay.engine.whole_key import WholeKeyInstance
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk
from forebay.store.filenames import Version
from forebay.windows import (
    AlignedWindows,
    Buffered,
    CountWindows,
    CustomWindows,
    FirstRows,
    GlobalWindow,
    Intervals,
    Lives,
    Preceding,
    SessionWindows,
    SharedWindows,
)

_KINDS: dict[type, Callable[..., Instance]] = {
    AlignedWindows: AlignedInstance,
    SessionWindows: SessionInstance,
    CustomWindows: SessionInstance,
    CountWindows: CountInstance,
    GlobalWindow: WholeKeyInstance,
    Preceding: PrecedingInstance,
    Buffered: BufferInstance,
    FirstRows: DedupeInstance,
    Intervals: IntervalJoinInstance,
    Lives: ContinuousJoinInstance,
    SharedWindows: SharedInstance,
}


def open_instance(
    plan: WindowPlan,
    directory: Path,
    version: Version | None,
    fired_until: int,
    *,
    archive: Archive | None = None,
    updating: bool = False,
    disk: Disk = LOCAL,
    observer: Observer | None = None,
) -> Instance:
    """The instance that runs a plan, in append or update mode.

    Parameters
    ----------
    plan : WindowPlan
        The operator.
    directory : Path
        The instance's own directory.
    version : Version or None
        The version that the last committed micro-batch left, None at the beginning.
    fired_until : int
        The watermark (microseconds) of the last micro-batch: windows that end by then have fired.
    archive : Archive, optional
        Where versions are safe, if not in the directory.
    updating : bool
        Whether a micro-batch emits what it has changed, instead of windows that have ended.
    disk : Disk
        What the directory is on.
    observer : Observer, optional
        Is told what the instance does.
    """
    if plan.firing is not None:
        kind: Callable[..., Instance] = PaneInstance
    elif updating and isinstance(plan.windows, AlignedWindows):
        kind = UpdateInstance
    else:
        kind = _KINDS[type(plan.windows)]
    return kind(plan, Opening(directory, version, fired_until, archive, disk, observer))
