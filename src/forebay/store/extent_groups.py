"""Rows by group, each group in extents. What a group is, is the business of the store above.

It may be a slice of time, as in the aligned stores, or a part of a store's files, as in the unaligned one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store import paging
from forebay.store.extent_map import ExtentMap
from forebay.store.manifest import Manifest
from forebay.store.segment import Extent
from forebay.store.segment_reader import Steps, side_by_side
from forebay.store.segments import Segments

Combine = Callable[[list[pa.RecordBatch]], pa.RecordBatch]

MAX_EXTENTS = 8
"""A group with more extents than this has its youngest ones combined."""


class Groups:
    """Rows by group: what a log and its parts have in common.

    Parameters
    ----------
    extents : ExtentMap
        Where they lie.
    segments : Segments
        The files in which they lie.
    """

    def __init__(self, extents: ExtentMap, segments: Segments) -> None:
        self._extents, self._segments = extents, segments

    def at(self, manifest: Manifest) -> Groups:
        """The groups as they were in another version of the same log."""
        return Groups(ExtentMap(manifest.extents, self._extents.part), self._segments)

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """The groups that have rows, ascending."""
        return self._extents.groups

    def within(self, first: int, end: int) -> list[int]:
        """The groups from one to before another that have rows, ascending."""
        return self._extents.within(first, end)

    @property
    def bytes(self) -> int:
        """Size on disk of the rows of all groups."""
        return self._extents.bytes

    def bytes_of(self, groups: Iterable[int]) -> int:
        """Size on disk of the rows of ``groups``."""
        return sum(extent.length for extent in self.extents_of(groups))

    def rows_of(self, groups: Iterable[int]) -> int:
        """Number of rows in ``groups``."""
        return sum(extent.rows for extent in self.extents_of(groups))

    def extents_of(self, groups: Iterable[int]) -> list[Extent]:
        """Where the rows of ``groups`` lie, by group and in order of arrival."""
        return [extent for group in groups for extent in self._extents.of(group)]

    def schemas_of(self, groups: Iterable[int]) -> list[pa.Schema]:
        """The different columns that rows of some groups have, as forms of the query have written them."""
        return self._segments.schemas(self.extents_of(groups))

    def append(self, group: int, batch: pa.RecordBatch) -> None:
        """Write rows of a group as a new extent."""
        self._extents.add(self._segments.write(group, batch, self._extents.part))

    def read(self, group: int) -> Iterator[pa.RecordBatch]:
        """The rows of a group, extent by extent, in order of arrival."""
        yield from self._segments.read(self._extents.of(group))

    def read_where(self, group: int, wanted: Callable[[Extent], bool]) -> Iterator[tuple[Extent, pa.RecordBatch]]:
        """The rows of some extents of a group, in order of arrival; an extent is asked for when its turn has come."""
        for extent in self._extents.of(group):
            if wanted(extent):
                for batch in self._segments.read([extent]):
                    yield extent, batch

    def read_ahead(self, groups: Iterable[int]) -> None:
        """Have the rows of groups read from disk side by side, which are all about to be read."""
        parts = [self._segments.reader_of(extent).part(extent) for extent in self.extents_of(groups)]
        if parts:
            paging.read_ahead(np.array(parts))

    def take(self, wanted: Iterable[tuple[int, npt.NDArray[np.int64]]]) -> list[pa.RecordBatch]:
        """Some rows of each of some groups that have one extent; where they are few, only what they are on is read."""
        return side_by_side(self._take(group, rows) for group, rows in wanted)

    def _take(self, group: int, rows: npt.NDArray[np.int64]) -> Steps:
        (extent,) = self._extents.of(group)
        return self._segments.reader_of(extent).take(extent, rows)

    def combine(self, group: int, combine: Combine, combine_bytes: int) -> None:
        """Keep the number of extents of a group logarithmic in the number of times it was appended to.

        From the youngest extent backwards, an extent joins as long as it is no larger than what has joined before it. So a
        row is rewritten at most once each time its extent doubles. Extents of ``combine_bytes`` and more stay as they are,
        and at most twice as much becomes one.
        """
        extents = self._extents.of(group)
        if len(extents) <= MAX_EXTENTS:
            return
        first = joining([extent.length for extent in extents], combine_bytes)
        if len(extents) - first > 1:
            batch = combine(list(self._segments.read(extents[first:])))
            self._extents.put(group, extents[:first])
            self.append(group, batch)

    def replace(self, group: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Have rows in place of those of a group, which the first of them is made of as a whole: they are merged."""
        written = [self._segments.write(group, batch, self._extents.part)._replace(merged=True) for batch in batches]
        self._extents.put(group, written)

    def merged_bytes(self, group: int) -> int:
        """Size on disk of those rows of a group that were merged as a whole."""
        return sum(extent.length for extent in self.extents_of([group]) if extent.merged)

    def drop(self, groups: Iterable[int]) -> None:
        """Forget groups; their files go when no kept version names them."""
        for group in groups:
            self._extents.put(group, ())


def joining(sizes: list[int], largest: int) -> int:
    """Where the youngest items begin that become one: backwards, as long as one is no larger than those after it together.

    None is larger than ``largest``, and all together are not larger than twice that.

    Examples
    --------
    >>> joining([90, 40, 20, 10, 10], 100)
    1
    >>> joining([50, 50, 50, 50, 50], 60)
    3
    """
    first, size = len(sizes) - 1, sizes[-1]
    while first > 0 and sizes[first - 1] <= min(size, largest, 2 * largest - size):
        first -= 1
        size += sizes[first]
    return first
