"""What is told of handovers: where state partitions are, and what has become of each handover."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from forebay.spark.driver.openings import Reopening

KEPT = 100
"""So many handovers of a query are remembered."""

_log = logging.getLogger("forebay")


@dataclass(frozen=True)
class Placed:
    """Where a state partition is.

    Attributes
    ----------
    partition : int
        The state partition.
    executor : str or None
        The executor that ran it last, or that it has been steered to.
    host : str or None
        That executor's host.
    stateBytes : int
        Size of its state.
    replicas : dict of str to int
        The hosts of its replica group, and by how many versions each is behind; -1 for one that is still being brought up.
    """

    partition: int
    executor: str | None
    host: str | None
    stateBytes: int = 0
    replicas: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Handed:
    """A handover that has ended.

    Attributes
    ----------
    reason : str
        ``move``, ``rebalance``, ``scale out``, ``scale in``, ``recovery`` or ``load balancing``.
    moved : dict of int to tuple of str
        The executors that partitions came from and went to.
    stateBytes : int
        Size of the state that changed hands.
    seconds : dict of str to float
        How long each step took: ``catchUp``, ``warm``, ``microBatch``. When the partitions have run there, also what is in
        the paper's table 1: ``scheduling``, from when Spark was told until stores were opened, and for these ``fetching``
        and ``loading``, in the partition where it took longest.
    failed : str or None
        Why it was given up, if it was.
    ended : float
        When it ended, in seconds since 1970.
    """

    reason: str
    moved: dict[int, tuple[str | None, str]] = field(default_factory=dict)
    stateBytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    failed: str | None = None
    ended: float = field(default_factory=time.time)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add to how long a step has taken."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began


class Records:
    """The handovers of a query: what is remembered of them, and logged.

    Attributes
    ----------
    recent : list of Handed
        The last ones, oldest first.
    done : int
        How many there were in all that moved something.
    waiting : list of tuple of Handed and Reopening
        Those of which it is not known yet how long it took until partitions had their state.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.recent: list[Handed] = []
        self.done = 0
        self.waiting: list[tuple[Handed, Reopening]] = []

    def add(self, handed: Handed, opening: Reopening | None = None) -> None:
        """Remember a handover, and log it; with an opening, how long that takes is added when it is over."""
        with self._lock:
            self.recent = [*self.recent, handed][-KEPT:]
            self.done += handed.failed is None and bool(handed.moved)
            if opening is not None:
                self.waiting = [*self.waiting, (handed, opening)]
        if handed.failed is not None:
            _log.warning(
                "the handover of partitions %s (%s) was given up: %s", [*handed.moved], handed.reason, handed.failed
            )
        elif handed.moved:
            moves = ", ".join(f"{partition}: {origin} to {target}" for partition, (origin, target) in handed.moved.items())
            _log.info(
                "handed over (%s) %d bytes of state; partitions %s; %s",
                handed.reason,
                handed.stateBytes,
                moves,
                _steps(handed),
            )

    def opened(self, batch: int) -> None:
        """Add how long it took until partitions had their state, as far as that is known after a micro-batch."""
        for handed, opening in [each for each in self.waiting if each[1].last <= batch]:
            whole = replace(handed, seconds={**handed.seconds, **opening.seconds()})
            with self._lock:
                self.recent = [whole if each is handed else each for each in self.recent]
                self.waiting = [each for each in self.waiting if each[0] is not handed]
            _log.info("partitions %s have their state (%s): %s", [*whole.moved], whole.reason, _steps(whole))


def _steps(handed: Handed) -> str:
    return ", ".join(f"{step} {seconds:.2f} s" for step, seconds in handed.seconds.items())
