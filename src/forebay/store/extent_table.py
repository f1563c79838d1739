"""The extents of a version as columns, as its manifest has them.

A store may have thousands of extents, of which a micro-batch reads and writes a few. So they are an array, and one is made
an `Extent` when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.store.segment import Extent

RECORD = np.dtype(
    [
        ("group", "<i8"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("rows", "<i8"),
        ("crc", "<u4"),
        ("segment", "<u4"),
        ("part", "<u4"),
        ("merged", "<u4"),
    ]
)
"""An extent. The segment and the part are places in lists of names."""

Records = npt.NDArray[np.void]


class ExtentTable:
    """Extents, by part and group, those of a group in order of arrival.

    Parameters
    ----------
    records : array of RECORD
        The extents in that order.
    segments : sequence of str
        The names of the segments in which they lie.
    parts : sequence of str
        The names of the parts in which their groups are.

    Examples
    --------
    >>> extents = [Extent(7, "a", 0, 100, 0, 1), Extent(3, "b", 0, 50, 0, 1), Extent(7, "b", 50, 10, 0, 1)]
    >>> table = ExtentTable.of(extents, ["a", "b"])
    >>> len(table), table.records["group"].tolist(), [extent.segment for extent in table]
    (3, [3, 7, 7], ['b', 'a', 'b'])
    """

    def __init__(self, records: Records, segments: Sequence[str] = (), parts: Sequence[str] = ("",)) -> None:
        self.records, self.segments, self.parts = records, segments, parts

    @classmethod
    def of(cls, extents: Iterable[Extent], segments: Iterable[str], parts: Sequence[str] = ("",)) -> ExtentTable:
        """Extents in any order, but those of a group in order of arrival."""
        names = tuple(segments)
        return cls(in_order(records_of(extents, places_of(names), places_of(parts))), names, parts)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Extent]:
        return self.extents(self.records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExtentTable) and list(self) == list(other)

    def extents(self, records: Records) -> Iterator[Extent]:
        """Some of its records as extents."""
        for group, offset, length, rows, crc, segment, part, merged in records.tolist():
            yield Extent(group, self.segments[segment], offset, length, crc, rows, self.parts[part], bool(merged))

    def part(self, name: str) -> Records:
        """The records of a part."""
        if name not in self.parts:
            return EMPTY.records
        if len(self.parts) == 1:
            return self.records
        number, parts = self.parts.index(name), self.records["part"]
        return self.records[parts.searchsorted(number) : parts.searchsorted(number, "right")]


EMPTY = ExtentTable(np.empty(0, RECORD))


def in_order(records: Records) -> Records:
    """Records by part and group, those of a group as they were."""
    return records[np.lexsort((records["group"], records["part"]))]


def places_of(names: Iterable[str]) -> dict[str, int]:
    """The place of each name."""
    return {name: place for place, name in enumerate(names)}


def records_of(extents: Iterable[Extent], segments: Mapping[str, int], parts: Mapping[str, int]) -> Records:
    """The records of extents, with these places of segments and parts."""
    rows: list[Any] = [
        (each.group, each.offset, each.length, each.rows, each.crc, segments[each.segment], parts[each.part], each.merged)
        for each in extents
    ]
    return np.array(rows, RECORD)
