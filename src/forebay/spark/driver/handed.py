"""What is told of handovers: where state partitions are, and what has become of each handover."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


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
        Size of its state, as far as hosts keep replicas.
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
        How long each step took: ``catchUp``, ``warm``, ``microBatch``.
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
