"""Extents that change are those of a plain dictionary, and the versions that are made of them have all, in order."""

import random

import numpy as np
import pytest

from forebay.store.extent_map import ExtentMap
from forebay.store.extent_table import ExtentTable, places_of
from forebay.store.segment import Extent

GROUPS = (-5, 0, 1, 2, 3, 1 << 61, 3 << 61)
PARTS = ("", "x")


class Checked:
    """The maps of two parts, each with a dictionary that goes through the same."""

    def __init__(self, seed):
        self.chance, self.count = random.Random(seed), 0
        self.maps = {part: ExtentMap(part=part) for part in PARTS}
        self.plain = {part: {} for part in PARTS}

    def step(self):
        part, group = self.chance.choice(PARTS), self.chance.choice(GROUPS)
        steps = [self.add, self.add, self.add, self.keep_some, self.move, self.make_version]
        self.chance.choice(steps)(part, group)

    def add(self, part, group):
        segment, length = f"s{self.chance.randrange(6)}", self.chance.randrange(1, 9)
        extent = Extent(group, segment, self.count, length, self.count, 1, part, self.chance.random() < 0.2)
        self.count += 1
        self.maps[part].add(extent)
        self.plain[part].setdefault(group, []).append(extent)

    def keep_some(self, part, group):
        kept = self.plain[part].pop(group, [])[: self.chance.randrange(3)]
        self.maps[part].put(group, kept)
        if kept:
            self.plain[part][group] = list(kept)

    def move(self, part, _):
        lying = [extent for extents in self.plain[part].values() for extent in extents if extent.segment in ("s1", "s2")]
        assert sorted(self.maps[part].lying_in(["s1", "s2"])) == sorted(lying)
        moved = {extent: extent._replace(segment="s5", offset=extent.offset + 1000) for extent in lying}
        self.maps[part].moved(moved)
        for group, extents in self.plain[part].items():
            self.plain[part][group] = [moved.get(extent, extent) for extent in extents]

    def make_version(self, *_):
        segments = [*{extent.segment for part in PARTS for extent in self.all(part)}]
        self.chance.shuffle(segments)
        records = [self.maps[part].records(places_of(segments), places_of(PARTS)) for part in PARTS]
        table = ExtentTable(np.concatenate(records), segments, PARTS)
        assert list(table) == [extent for part in PARTS for extent in self.all(part)]
        if self.chance.random() < 0.2:
            self.maps = {part: ExtentMap(table, part) for part in PARTS}
        elif self.chance.random() < 0.8:  # else the version was not made
            for each in self.maps.values():
                each.settle(table)

    def all(self, part):
        return [extent for group in sorted(self.plain[part]) for extent in self.plain[part][group]]

    def check(self):
        for part in PARTS:
            found, extents = self.maps[part], self.all(part)
            live = {extent.segment: 0 for extent in extents}
            for extent in extents:
                live[extent.segment] += extent.length
            assert (found.live, found.bytes) == (live, sum(live.values()))
            assert found.groups.tolist() == sorted(self.plain[part])
            assert found.within(0, 1 << 61) == [group for group in sorted(self.plain[part]) if 0 <= group < 1 << 61]
            group = self.chance.choice(GROUPS)
            assert list(found.of(group)) == self.plain[part].get(group, [])


def test_a_segment_without_a_place_is_no_other_one():
    extents = ExtentMap(ExtentTable.of([Extent(1, "a", 0, 9, 0, 1), Extent(2, "b", 0, 9, 0, 1)], ["a", "b"]))
    with pytest.raises(KeyError, match="a segment that has no place"):
        extents.records({"b": 0}, {"": 0})


@pytest.mark.parametrize("seed", range(20))
def test_extents_are_those_of_a_dictionary(seed):
    for number in range(20):
        checked = Checked(f"{seed} {number}")
        for _ in range(50):
            checked.step()
            checked.check()
