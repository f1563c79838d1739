"""What the store of partial aggregates by slice keeps on disk."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.store.options import Options
from forebay.store.rmw import open_rmw

MEGABYTE = 1 << 20


def merge(rows):
    return rows.group_by("key", maintain_order=True).agg(pl.col("n").sum(), pl.col("first").first(), pl.col("last").last())


@pytest.mark.parametrize("lasting", [True, False], ids=["keys that come again", "keys that come once"])
def test_a_slice_stays_within_a_few_times_its_keys_and_is_not_written_again_and_again(tmp_path, lasting):
    """Its keys are too many for one extent: those of small ones alone are combined."""
    options, version, chance, written = (
        Options(memory_bytes=8 * MEGABYTE, retain_versions=2),
        None,
        np.random.default_rng(0),
        0,
    )
    known: dict[int, tuple[int, int, int]] = {}
    for commit in range(40):
        store = open_rmw(tmp_path, version, ["key"], merge, options)
        keys = chance.choice(60_000, 20_000, replace=False) if lasting else np.arange(20_000) + commit * 20_000
        count = np.full(20_000, commit)
        names = [f"user {key:012d}" for key in keys]
        store.append(0, pa.record_batch({"key": names, "n": np.ones(20_000, np.int64), "first": count, "last": count}))
        before = {*store.base.segments}
        version = store.commit(0, store.base.counters)
        written += sum(segment.size for name, segment in store.base.segments.items() if name not in before)
        for key in keys.tolist():
            n, first, _ = known.get(key, (0, commit, commit))
            known[key] = n + 1, first, commit
    store = open_rmw(tmp_path, version, ["key"], merge, options)
    least = len(known) * store.metrics.live_bytes / store.base.rows
    assert store.metrics.live_bytes < 2 * least + 8 * MEGABYTE
    assert written < 5 * 40 * 20_000 * store.metrics.live_bytes / store.base.rows
    found = pl.concat([merge(part) for part in store.get_window([0])]).sort("key")
    assert found["key"].to_list() == [f"user {key:012d}" for key in sorted(known)]
    assert found.drop("key").rows() == [known[key] for key in sorted(known)]
