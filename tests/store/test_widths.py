"""Windows with wide rows among those with narrow ones: their sizes are told, and dead ones cleared out."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.store.options import Options
from forebay.store.pieces import in_extents
from forebay.store.segment import SEGMENT_BYTES
from forebay.store.unaligned import SLOT, UnalignedStore

NARROW, WIDE = 20, 50_000


def rows(widths):
    return pa.record_batch({"n": pa.array(np.arange(len(widths))), "text": ["x" * width for width in widths]})


def mixed(store, first, narrow, wide, end):
    """Windows of a row each come, a few of them wide; those end first."""
    keys = np.arange(first, first + narrow + wide)
    ends = np.concatenate([np.full(wide, end), np.full(narrow, 10**9)])
    order = np.random.default_rng(first).permutation(len(keys))
    widths = np.where(order < wide, WIDE, NARROW)
    store.append(rows(widths), store.index.place_exact(keys, keys, np.zeros(len(keys), np.int64), ends[order]))


@pytest.fixture
def store(tmp_path):
    """30 MB of wide rows in 30 commits, with 2,000 narrow ones in each."""
    store = UnalignedStore(tmp_path, None, Options(16 << 20, read_batch_ratio=0.01))
    for commit in range(30):
        mixed(store, 10_000 * commit, 2000, 20, commit)
        version = store.commit()
    return UnalignedStore(tmp_path, version, store.options)


def test_sizes_of_windows_are_right(store):
    slots = store.index.live()
    wide = store.index.ends(slots) < 10**9
    sizes = store.bytes_of(slots)
    assert sizes[wide] == pytest.approx(WIDE, rel=0.1)
    assert sizes[~wide].max() < 100
    parts = list(store.loadable(store.index.due(10**8)))
    assert max(store.get(part)["text"].str.len_bytes().sum() for part in parts) < 1.1 * store.options.load_bytes


def test_no_more_is_read_ahead_than_there_is_room_for(store):
    store.get(store.index.due(0)[:1])
    assert 0 < store.metrics.prefetched_bytes < 1.1 * store.options.prefetch_bytes


@pytest.mark.parametrize("wide", [20, 150, 200])
def test_dead_wide_rows_do_not_stay(tmp_path, wide):
    """However many they are: of 520 to 700."""
    version, options = None, Options(16 << 20, retain_versions=2)
    for commit in range(40):
        store = UnalignedStore(tmp_path, version, options)
        mixed(store, 10_000 * commit, 500, wide, commit + 3)
        store.remove(store.index.due(commit))
        version = store.commit()
    live = 3 * wide * WIDE + 40 * 500 * 50
    assert store.metrics.disk_bytes < 4 * live
    assert len(UnalignedStore(tmp_path, version).get(store.index.live())) == 3 * wide + 40 * 500


@pytest.mark.parametrize("most", [None, 1, 2, 3, 50])
@pytest.mark.parametrize("seed", range(20))
def test_extents_have_all_rows_as_they_came_within_a_window(seed, most):
    chance = np.random.default_rng(seed)
    counts = chance.integers(1, 5, 200)
    slots = np.repeat(chance.permutation(200).astype(np.int32), counts)
    scale = 10.0 ** chance.integers(0, 5, 200)
    batch = rows((chance.random(len(slots)) * np.repeat(scale, counts)).astype(int))
    parts = list(in_extents(batch, slots, 1 << 20, most))
    assert 0 < len(parts) <= (most or len(slots))
    found = pl.concat([pl.DataFrame(part).with_columns(pl.Series(SLOT, owners)) for part, owners in parts])
    assert found.sort(SLOT, maintain_order=True).equals(
        pl.DataFrame(batch).with_columns(pl.Series(SLOT, slots)).sort(SLOT, maintain_order=True)
    )
    if most in (None, 50):
        assert len({len(part) for part, _ in parts}) > 1
        for part, owners in parts:
            sizes = pl.DataFrame(part).select(pl.col("text").str.len_bytes() + 8).to_series()
            by_window = pl.DataFrame({"slot": owners, "size": sizes}).group_by("slot").agg(pl.col("size").mean(), pl.len())
            too_wide = by_window.filter(pl.col("size") > 5 * sizes.mean())
            assert (too_wide["size"] * too_wide["len"]).sum() < batch.nbytes / 8


def test_rows_that_are_alike_are_cut_where_extents_are_full():
    batch = rows(np.full(1000, 10_000))
    parts = list(in_extents(batch, np.arange(1000, dtype=np.int32), SEGMENT_BYTES))
    assert [len(owners) for _, owners in parts] == [418, 418, 164]


@pytest.mark.parametrize("flushed", [False, True])
def test_windows_that_are_larger_than_a_size(store, flushed):
    """Of what is on disk and of what is in memory, which may be written meanwhile, each row counts once."""
    slots = store.index.live()
    wide = slots[store.index.ends(slots) < 10**9]
    more = np.concatenate([wide[:5], slots[:5], wide[:5]])
    store.append(rows(np.full(len(more), WIDE)), more)
    if flushed:
        store.flush()
    assert store.larger(slots, 20 * WIDE).tolist() == []
    assert store.larger(slots, 5 * WIDE // 2).tolist() == sorted(wide[:5])
    assert set(wide) <= set(store.larger(slots, WIDE // 2)) <= {*wide, *slots[:5]}
    assert store.larger(slots, 100 << 20).tolist() == []
