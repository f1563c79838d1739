"""Where the rows of groups lie, and how many bytes that comes to: of all, and in each segment.

What all extents come to is counted as they change. A commit asks for it several times, and touches few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from forebay.store.segment import Extent


class ExtentMap:
    """Extents by group.

    Parameters
    ----------
    extents : iterable of Extent
        What is in it, those of a group in order of arrival.

    Attributes
    ----------
    bytes : int
        Size of all.
    live : mapping of str to int
        Size of those in each segment that has any.

    Examples
    --------
    >>> extents = ExtentMap([Extent(7, "a", 0, 100, 0, 1), Extent(3, "b", 0, 50, 0, 1), Extent(7, "b", 50, 10, 0, 1)])
    >>> extents.bytes, extents.live, [extent.length for extent in extents]
    (160, {'a': 100, 'b': 60}, [50, 100, 10])
    >>> extents.put(7, [])
    >>> extents.bytes, extents.live, extents.groups.tolist()
    (50, {'b': 50}, [3])
    """

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._groups: dict[int, list[Extent]] = {}
        self.bytes = 0
        self.live: dict[str, int] = {}
        for extent in extents:
            self.add(extent)

    def __iter__(self) -> Iterator[Extent]:
        for group in sorted(self._groups):
            yield from self._groups[group]

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """The groups that have extents, ascending."""
        return np.array(sorted(self._groups), dtype=np.int64)

    def of(self, group: int) -> Sequence[Extent]:
        """The extents of a group, in order of arrival."""
        return self._groups.get(group, ())

    def add(self, extent: Extent) -> None:
        """Have one more extent."""
        self._groups.setdefault(extent.group, []).append(extent)
        self._count([extent], 1)

    def put(self, group: int, extents: Sequence[Extent]) -> None:
        """Have these extents of a group in place of those that there are."""
        self._count(self._groups.pop(group, ()), -1)
        if extents:
            self._groups[group] = list(extents)
            self._count(extents, 1)

    def moved(self, places: Mapping[Extent, Extent]) -> None:
        """Have other extents in place of some."""
        for group in {extent.group for extent in places}:
            self.put(group, [places.get(extent, extent) for extent in self.of(group)])

    def _count(self, extents: Sequence[Extent], sign: int) -> None:
        for extent in extents:
            size = sign * extent.length
            self.bytes += size
            left = self.live.get(extent.segment, 0) + size
            if left:
                self.live[extent.segment] = left
            else:
                self.live.pop(extent.segment, None)
