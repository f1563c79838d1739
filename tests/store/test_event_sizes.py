"""Wide events among narrow ones, which patterns share: sizes of windows are told, and dead events cleared out."""

import numpy as np
import pyarrow as pa
import pytest

from forebay.store import event_references, events
from forebay.store.event_references import BYTES, widths_of
from forebay.store.event_slices import EventSlices
from forebay.store.events import EVENT, EventLog
from forebay.store.extent_log import ExtentLog
from forebay.store.manifest import SLICES, UNWEIGHED_SLICES, Counters
from forebay.store.options import Options
from forebay.store.references import ReferenceStore
from forebay.store.unaligned import SLOT, UnalignedStore

NARROW, WIDE = 20, 50_000
OPTIONS = Options(16 << 20)
NEW = ["size", "live", "released", "unknown"]
"""What earlier releases did not write of slices."""


class Windows:
    """Windows of one event each, as a pattern has them."""

    def __init__(self, directory):
        self.directory, self.version = directory, None
        self.open()

    def open(self):
        self.log = ExtentLog(self.directory, self.version, OPTIONS)
        self.events = EventLog(self.directory, self.log, None, OPTIONS)
        self.store = ReferenceStore(self.directory, self.log.part("pattern:1"), OPTIONS, self.events, ["n", "text"])

    def append(self, first, widths, ends):
        keys = np.arange(first, first + len(widths))
        texts = ["x" * width for width in widths]
        references = self.events.append(np.zeros(len(keys), np.int64), pa.record_batch({"n": keys, "text": texts}))
        slots = self.store.index.place_exact(keys, keys, np.zeros(len(keys), np.int64), ends)
        self.store.append(pa.record_batch({EVENT: references}), slots)

    def mixed(self, first, narrow, wide, end):
        """Some wide events come among narrow ones; the windows of those end first."""
        order = np.random.default_rng(first).permutation(narrow + wide)
        self.append(first, np.where(order < wide, WIDE, NARROW), np.where(order < wide, end, 10**9))

    def commit(self):
        self.store.commit()
        self.events.write(lambda lasts: np.zeros(len(lasts), bool), 1, lambda: self.store.references)
        self.log.compact(OPTIONS.max_space_amplification)
        self.version = self.log.commit(None, Counters())
        self.log.close()
        self.open()

    def fire(self, until):
        self.store.remove(self.store.index.due(until))


@pytest.fixture
def windows(tmp_path):
    """30 MB of wide events in 30 micro-batches, with 2,000 narrow ones in each; the last of them is not on disk."""
    windows = Windows(tmp_path)
    for number in range(29):
        windows.mixed(10_000 * number, 2000, 20, number)
        windows.commit()
    windows.mixed(290_000, 2000, 20, 29)
    return windows


def test_sizes_of_windows_are_right(windows):
    index = windows.store.index
    slots = index.live()
    sizes, wide = windows.store.bytes_of(slots), index.ends(slots) < 10**9
    assert np.count_nonzero(wide) == 600
    assert sizes[wide] == pytest.approx(WIDE, rel=0.2)
    assert sizes[~wide].max() < 100


def test_no_more_events_are_loaded_than_there_is_room_for(windows):
    store, loaded, found = windows.store, [], []
    due = store.index.due(10**9)
    for part in store.loadable(due):
        rows = store.get(part)
        assert np.isin(rows[SLOT].to_numpy(), part).all()
        loaded.append(int(rows["text"].str.len_bytes().sum()))
        found += rows["n"].to_list()
        store.remove(part)
    assert len(found) == len(due) == len(set(found)) == 30 * 2020
    assert max(loaded) < 1.3 * OPTIONS.load_bytes
    assert not windows.events.slices["references"].any()
    assert not windows.events.slices["live"].any()


def test_references_are_read_once_when_windows_fire(windows, monkeypatch):
    read, get = [], UnalignedStore.get
    monkeypatch.setattr(UnalignedStore, "get", lambda store, slots, **how: read.extend(slots) or get(store, slots, **how))
    due = windows.store.index.due(20)
    for part in windows.store.loadable(due):
        for some in (part[::2], part[1::2]):
            assert sorted(windows.store.get(some)[SLOT]) == sorted(some)
            windows.store.remove(some)
    assert sorted(read) == sorted(due)


def test_dead_wide_events_do_not_stay(tmp_path):
    windows = Windows(tmp_path)
    for number in range(60):
        windows.mixed(10_000 * number, 500, 20, number + 3)
        windows.fire(number)
        windows.commit()
    live = 3 * 20 * WIDE + 60 * 500 * 50
    assert windows.log.disk_bytes < 4 * live
    widths = windows.store.get(windows.store.index.live())["text"].str.len_bytes()
    assert sorted(widths) == [NARROW] * 60 * 500 + [WIDE] * 3 * 20


def test_all_references_are_not_read_for_nothing(windows, monkeypatch):
    """While events come and none of them ends, or narrow ones that are not worth it."""
    monkeypatch.setattr(ReferenceStore, "references", property(lambda store: pytest.fail("they were read")))
    windows.fire(-1)
    windows.commit()
    due = windows.store.index.due(10**9)
    windows.store.remove(due[windows.store.index.ends(due) == 10**9][:20_000])
    windows.commit()


def test_slices_whose_sizes_are_not_known_are_taken_for_even(tmp_path, monkeypatch):
    """As earlier releases have written them. They lose dead events, too, and new ones go on in them."""
    with monkeypatch.context() as earlier:
        to_batch = EventSlices.to_batch
        earlier.setattr(EventSlices, "to_batch", lambda slices: to_batch(slices).drop_columns(NEW))
        earlier.setattr(events, "SLICES", UNWEIGHED_SLICES)
        earlier.setattr(events, "UNWEIGHED_SLICES", SLICES)
        earlier.setattr(event_references, "widths_of", lambda batch: np.zeros(batch.num_rows, np.int64))
        windows = Windows(tmp_path)
        windows.append(0, np.full(2000, 2000), np.arange(2000))
        windows.commit()
    windows.open()
    (each,) = windows.events.slices
    assert each[["events", "references", "released"]].tolist() == (2000, 2000, -1)
    assert each["size"] == each["live"] == 2000 * each["unknown"] == pytest.approx(2000 * 2000, rel=0.1)
    assert windows.store.bytes_of(windows.store.index.live()).tolist() == [each["unknown"]] * 2000
    windows.append(2000, np.full(40, WIDE), np.full(40, 10**9))
    windows.commit()
    windows.fire(1500)
    windows.commit()
    (each,) = windows.events.slices
    slots = windows.store.index.live()
    assert each["size"] == each["live"] == windows.store.bytes_of(slots).sum()
    assert windows.log.disk_bytes < 1.5 * (499 * 2000 + 40 * WIDE)
    assert sorted(windows.store.get(slots)["n"]) == list(range(1501, 2040))


@pytest.mark.parametrize("text", [0, 1, 5, 40, 3000, 1 << 20, 1 << 24])
def test_widths_are_close(text):
    batch = pa.record_batch({"a": ["x" * text] * 3, "n": [1, 2, 3]})
    assert BYTES[widths_of(batch)] == pytest.approx(batch.nbytes / 3, rel=0.25)
