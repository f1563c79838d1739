"""Executors that have joined, until they have been given their share of the partitions: who is next, and when."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 600.0
"""So long an executor waits after a scale-out to it has failed: twice as long each time, and no longer than the second."""

DISMISSED_SECONDS, LONGEST_DISMISSED_SECONDS = 600.0, 7200.0
"""So long an executor waits that has been dismissed: twice as long each time, and no longer than the second."""


class Newcomers:
    """The executors of a query that have not been given partitions yet, or whose partitions were taken from them.

    Those that are there when the query begins have their share by Spark's own doing. The threads that judge executors and
    that move partitions may ask at the same time.

    Examples
    --------
    >>> newcomers = Newcomers()
    >>> newcomers.due({"1", "2"}, now=0), newcomers.due({"1", "2", "3"}, now=1)
    (set(), {'3'})
    >>> newcomers.failed({"3"}, now=5)
    10.0
    >>> newcomers.due({"1", "2", "3"}, now=14), newcomers.due({"1", "2", "3"}, now=15)
    (set(), {'3'})
    >>> newcomers.settled({"3"})
    >>> newcomers.due({"1", "2", "3"}, now=16)
    set()
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._settled: set[str] = set()
        self._waits: dict[str, tuple[float, float]] = {}
        self._dismissals: dict[str, int] = {}
        self._was_new = False

    def due(self, present: Collection[str], now: float) -> set[str]:
        """Who of the executors that are there is to be given partitions: all that are new, or one that has waited.

        They take turns, so that those that come again and again do not hold up one that waits. Of these it is one at a time:
        an executor that can never be given any does not hold up the others for good.
        """
        with self._lock:
            if not self._settled.intersection(present):
                self._settled = self._dismissals.keys() & present or set(present)
            self._settled.intersection_update(present)
            joined = set(present) - self._settled
            self._waits = {each: wait for each, wait in self._waits.items() if each in joined or each in self._dismissals}
            waited = [(until, each) for each, (_, until) in self._waits.items() if until <= now and each in joined]
            turns = joined - self._waits.keys(), {each for _, each in sorted(waited)[:1]}
            new, old = turns if not self._was_new else turns[::-1]
            found = new or old
            self._was_new = bool(found) and found == turns[0]
            return found

    @property
    def served(self) -> set[str]:
        """Those that have their share."""
        with self._lock:
            return set(self._settled)

    @property
    def waiting(self) -> set[str]:
        """Those to which a scale-out has failed, or that were dismissed."""
        with self._lock:
            return set(self._waits)

    def settled(self, executors: Iterable[str]) -> None:
        """They have been given their share."""
        with self._lock:
            for each in executors:
                self._settled.add(each)
                self._waits.pop(each, None)

    def failed(self, executors: Iterable[str], now: float) -> float:
        """It has failed to give them their share; the seconds until the first of them is due again."""
        waits = []
        with self._lock:
            for each in executors:
                before, _ = self._waits.get(each, (FIRST_SECONDS / 2, now))
                seconds = min(2 * before, LONGEST_SECONDS)
                self._waits[each] = seconds, now + seconds
                waits.append(seconds)
        return min(waits)

    def dismissed(self, executor: str, now: float) -> float:
        """Its share is taken from it, since it is slow; the seconds until it is due again."""
        with self._lock:
            times = self._dismissals[executor] = self._dismissals.get(executor, 0) + 1
            seconds = min(DISMISSED_SECONDS * (1 << times - 1), LONGEST_DISMISSED_SECONDS)
            self._settled.discard(executor)
            self._waits[executor] = FIRST_SECONDS / 2, now + seconds
        return seconds

    def called_back(self, executor: str, *, undone: bool = False) -> None:
        """It runs partitions, though it was dismissed; ``undone`` if they had never left it."""
        with self._lock:
            if executor in self._dismissals:
                self.settled([executor])
                self._dismissals[executor] -= undone
