"""Where the rows of groups lie, and how many bytes that comes to: of all, and in each segment.

It is what a version has, and what has changed since. A commit asks several times for sums over all extents, and makes a new
version of them all, but touches few: so sums are counted as extents change, and the others stay the columns that they were.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from forebay.store.extent_table import EMPTY, ExtentTable, Records, records_of
from forebay.store.segment import Extent

_NO_PLACE = (1 << 32) - 1
"""Of a segment that a version does not have."""


class ExtentMap:
    """Extents of one part by group.

    Parameters
    ----------
    table : ExtentTable
        The version of which it has the extents.
    part : str
        The name of the part; "" is the log itself.

    Attributes
    ----------
    bytes : int
        Size of all.
    live : mapping of str to int
        Size of those in each segment that has any.

    Examples
    --------
    >>> stored = [Extent(7, "a", 0, 100, 0, 1), Extent(3, "b", 0, 50, 0, 1), Extent(7, "b", 50, 10, 0, 1)]
    >>> extents = ExtentMap(ExtentTable.of(stored, ["a", "b"]))
    >>> extents.bytes, extents.live, [extent.length for extent in extents.of(7)]
    (160, {'a': 100, 'b': 60}, [100, 10])
    >>> extents.put(7, [])
    >>> extents.bytes, extents.live, extents.within(0, 9)
    (50, {'b': 50}, [3])
    """

    def __init__(self, table: ExtentTable = EMPTY, part: str = "") -> None:
        self.part = part
        self._changed: set[int] = set()
        self._found: dict[int, list[Extent]] = {}
        """The extents of groups that were asked for, or have changed and have some."""
        self.settle(table)
        self._groups: list[int] = list(dict.fromkeys(self._records["group"].tolist()))
        sizes = [0] * len(table.segments)
        for place, size in zip(self._records["segment"].tolist(), self._records["length"].tolist(), strict=True):
            sizes[place] += size
        self.bytes = sum(sizes)
        self.live = {name: size for name, size in zip(table.segments, sizes, strict=True) if size}

    def settle(self, table: ExtentTable) -> None:
        """The version of which it has the extents is another one, and nothing has changed since."""
        self._table, self._records = table, table.part(self.part)
        self._changed.clear()

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """The groups that have extents, ascending."""
        return np.array(self._groups, dtype=np.int64)

    def within(self, first: int, end: int) -> list[int]:
        """The groups from one to before another that have extents, ascending."""
        return self._groups[bisect_left(self._groups, first) : bisect_left(self._groups, end)]

    def of(self, group: int) -> Sequence[Extent]:
        """The extents of a group, in order of arrival."""
        found = self._found.get(group)
        return self._look(group) if found is None else found

    def add(self, extent: Extent) -> None:
        """Have one more extent."""
        group = extent.group
        if self.of(group):
            self._found[group].append(extent)
        else:
            self._found[group] = [extent]
            insort(self._groups, group)
        self._changed.add(group)
        self._count([extent], 1)

    def put(self, group: int, extents: Sequence[Extent]) -> None:
        """Have these extents of a group in place of those that there are."""
        before = self.of(group)
        if before:
            self._count(before, -1)
            del self._groups[bisect_left(self._groups, group)], self._found[group]
            self._changed.add(group)
        for extent in extents:
            self.add(extent)

    def moved(self, places: Mapping[Extent, Extent]) -> None:
        """Have other extents in place of some."""
        for group in {extent.group for extent in places}:
            self.put(group, [places.get(extent, extent) for extent in self.of(group)])

    def lying_in(self, segments: Iterable[str]) -> list[Extent]:
        """The extents that lie in some segments, by group."""
        wanted = {*segments}
        places = [place for place, name in enumerate(self._table.segments) if name in wanted]
        unchanged = self._unchanged()
        found = [*self._table.extents(unchanged[np.isin(unchanged["segment"], places)])]
        found += (extent for extent in self._those_changed() if extent.segment in wanted)
        return sorted(found, key=attrgetter("group"))

    def records(self, segments: Mapping[str, int], parts: Mapping[str, int]) -> Records:
        """All extents as another version has them, in which segments and parts have these places.

        Raises
        ------
        KeyError
            A segment in which some lie has none.
        """
        records = self._unchanged()
        if len(records):
            places = np.array([segments.get(name, _NO_PLACE) for name in self._table.segments], np.uint32)
            records["segment"] = places[records["segment"]]
            records["part"] = parts[self.part]
            if (records["segment"] == _NO_PLACE).any():
                raise KeyError("extents lie in a segment that has no place")
        found = np.concatenate([records, records_of(self._those_changed(), segments, parts)])
        return found[np.argsort(found["group"], kind="stable")]

    def _look(self, group: int) -> Sequence[Extent]:
        if group in self._changed:
            return ()
        groups = self._records["group"]
        records = self._records[groups.searchsorted(group) : groups.searchsorted(group, "right")]
        if not len(records):
            return ()
        found = self._found[group] = [*self._table.extents(records)]
        return found

    def _unchanged(self) -> Records:
        """A copy of the records of groups that have not changed."""
        return self._records[[group not in self._changed for group in self._records["group"].tolist()]]

    def _those_changed(self) -> list[Extent]:
        return [extent for group in sorted(self._changed) for extent in self._found.get(group, ())]

    def _count(self, extents: Sequence[Extent], sign: int) -> None:
        for extent in extents:
            size = sign * extent.length
            self.bytes += size
            left = self.live.get(extent.segment, 0) + size
            if left:
                self.live[extent.segment] = left
            else:
                self.live.pop(extent.segment, None)
