"""The write buffer of aligned windows: what is in it by slice, however it came, and how much of it there is."""

import numpy as np
import pyarrow as pa
import pytest

from forebay.store.aligned import AlignedStore
from forebay.store.options import Options
from forebay.store.slice_buffer import SliceBuffer


def batch(chance, slices, rows):
    """Rows of some slices, one after the other, and where each slice's are."""
    starts = np.sort(chance.choice(slices, rows))
    found, begins = np.unique(starts, return_index=True)
    values = chance.integers(0, 10**9, rows)
    return pa.record_batch({"n": values}), found, begins, np.append(begins[1:], rows)


@pytest.mark.parametrize("seed", range(10))
def test_it_has_what_lists_by_slice_would_have(seed):
    chance, buffer, model = np.random.default_rng(seed), SliceBuffer(), {}
    for _ in range(60):
        if chance.random() < 0.7:
            rows, starts, begins, ends = batch(chance, np.arange(0, 300, 10), int(chance.integers(1, 40)))
            taken = chance.random(len(starts)) < 0.8
            buffer.append(rows, starts[taken], begins[taken], ends[taken])
            for start, begin, end in zip(starts[taken].tolist(), begins[taken], ends[taken], strict=True):
                model.setdefault(start, []).append(rows["n"][begin:end].to_pylist())
        else:
            gone = chance.choice(np.arange(0, 310, 10), 5).tolist()
            buffer.drop(gone)
            model = {start: parts for start, parts in model.items() if start not in gone}
        found = {start: [part["n"].to_pylist() for part in parts] for start, parts in buffer.by_slice()}
        assert found == model
        assert list(found) == sorted(model) == buffer.slices.tolist()
        some = chance.choice(np.arange(0, 310, 10), 4).tolist()
        assert [[part["n"].to_pylist() for part in buffer.of(start)] for start in some] == [
            model.get(start, []) for start in some
        ]
        rows = sum(len(part) for parts in model.values() for part in parts)
        runs = sum(map(len, model.values()))
        assert buffer.rows == rows
        assert buffer.nbytes == pytest.approx(8 * rows + 32 * runs)
        sizes = {start: sum(8 * len(part) + 32 for part in model.get(start, [])) for start in range(-10, 320, 10)}
        assert buffer.sizes_of(np.array([*sizes])) == pytest.approx([*sizes.values()])
    buffer.drop(list(model))
    assert not buffer._batches


def test_rows_of_very_many_slices_are_one_batch_until_they_are_written(tmp_path):
    """As a batch for each slice they would take far more memory than is counted."""
    store, rows = AlignedStore(tmp_path, None, ["n"], Options()), 50_000
    numbers = np.arange(rows)
    for _ in range(2):
        store.append_slices(pa.record_batch({"n": numbers}), numbers, numbers, numbers + 1)
    assert len(store._buffer._batches) == 2
    assert store.metrics.memory_bytes < 100 * rows
    assert [part["n"].to_list() for part in store.get_window([7, 9])] == [[7, 7, 9, 9]]
