"""Records of the slices of events: numbers that wrap around, and columns that come and go."""

import numpy as np

from forebay.store import event_slices
from forebay.store.event_slices import EventSlices


def begin(slices, *starts):
    return slices.begin(np.array(starts, np.int64), 10).tolist()


def test_numbers_begin_again_and_pass_over_those_that_are_taken(monkeypatch):
    monkeypatch.setattr(event_slices, "NUMBERS", 6)
    slices = EventSlices()
    assert begin(slices) == []
    assert begin(slices, 0, 10, 20, 30) == [0, 1, 2, 3]
    slices.keep(np.array([False, True, False, True]))
    assert begin(slices, 40, 50, 60, 70) == [4, 5, 0, 2]
    assert slices.places(np.array([3, 0, 6])).tolist() == [1, 4, -1]
    assert slices.records["start"][slices.places(np.arange(6))].tolist() == [60, 10, 70, 30, 40, 50]


def test_columns_are_those_that_all_events_have():
    slices = EventSlices()
    assert slices.columns == frozenset()
    begin(slices, 0, 10)
    for place, columns in ((0, "ab"), (1, "abc"), (1, "bc")):
        slices.narrow(np.array([place]), frozenset(columns))
        slices.records["events"][place] += 1
    assert slices.columns == {"b"}
    again = EventSlices.of([slices.to_batch()])
    assert again.records[["number", "start", "events"]].tolist() == [(0, 0, 1), (1, 10, 2)]
    again.keep(np.array([False, True]))
    assert again.columns == {"b", "c"}
