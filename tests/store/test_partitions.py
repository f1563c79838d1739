"""A window that is too large to load comes in partitions of its keys, by way of a file that nobody sees."""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.errors import StateDirectoryError
from forebay.store.partitions import SLICE, partitions_of

ROWS, BATCHES = 1000, 20


def batches():
    """Rows of some slices, with keys and values of types that are no numbers, and NULLs among them."""
    chance = np.random.default_rng(1)
    for number in range(BATCHES):
        keys = chance.integers(0, 300, ROWS).tolist()
        columns = {
            "user": [None if key % 7 == 0 else f"user {key}" for key in keys],
            "shop": keys,
            "order": np.arange(ROWS) + number * ROWS,
            "list": [[key] * (key % 3) for key in keys],
        }
        yield number // 5 * 10, pa.record_batch(columns)


@pytest.mark.parametrize("room", [1 << 14, 1 << 18])
def test_all_rows_come_those_of_a_key_together_and_in_order(tmp_path, room):
    size = sum(batch.nbytes for _, batch in batches())
    parts = list(partitions_of(batches(), ["user", "shop"], size, room, tmp_path))
    assert 1 < len(parts) <= -(-size // room)
    assert not any(tmp_path.iterdir())
    keys = [set(part.select("user", "shop").unique().rows()) for part in parts]
    assert sum(map(len, keys)) == len(set.union(*keys))
    assert all(part["order"].is_sorted() for part in parts)
    whole = pl.concat([pl.DataFrame(batch).with_columns(pl.lit(start).alias(SLICE)) for start, batch in batches()])
    assert pl.concat(parts).sort("order").equals(whole)


@pytest.mark.parametrize("size", [0, 1 << 30])
def test_no_rows_are_no_partitions(tmp_path, size):
    nothing = pa.record_batch({"user": pa.array([], pa.string())})
    assert list(partitions_of([(0, nothing)], ["user"], size, 1 << 20, tmp_path)) == []
    assert list(partitions_of([], ["user"], size, 1 << 20, tmp_path)) == []


def test_nothing_is_left_of_partitions_that_are_not_read_to_the_end(tmp_path):
    parts = partitions_of(batches(), ["shop"], 100, 10, tmp_path)
    next(parts)
    parts.close()
    assert not any(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_told(tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(StateDirectoryError, match=f"cannot create the state directory {tmp_path}/file"):
        list(partitions_of(batches(), ["shop"], 100, 10, tmp_path / "file" / "store"))


def test_a_disk_without_room_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Path("/dev/full").open("w+b"))  # noqa: SIM115  # partitions_of closes it
    message = f"cannot write rows of a large window to a file in {tmp_path}: No space left"
    with pytest.raises(StateDirectoryError, match=message):
        list(partitions_of(batches(), ["shop"], 100, 10, tmp_path))
