"""A join within windows that is made part by part gives what one made as a whole does."""

import polars as pl
import pytest

from forebay.engine import window_join
from forebay.engine.window_join import WindowJoin


def results(how, listed=lambda values: values):
    """Rows of keys with none, one and many on either side, and of a key that is NULL; values may be in lists."""
    counts = [("hot", 40, 30), ("left alone", 3, 0), ("right alone", 0, 4), (None, 2, 2), ("one", 1, 1), ("many", 1, 90)]
    rows = [(w, key, side, n) for w in (0, 7) for key, *sides in counts for side in (0, 1) for n in range(sides[side])]
    frame = pl.DataFrame(rows, schema=["w", "k", "right", "a"], orient="row").with_columns(pl.col("right").cast(pl.Boolean))
    frame = frame.with_columns(listed(pl.col("a")))
    join = WindowJoin(how, "right", ("a",), () if how in ("semi", "anti") else ("a",))
    found, largest = [], 0
    for windows, columns in join.results(frame, ["k"], "w", lambda windows, columns: (windows, columns)):
        found += zip(windows.tolist(), *(column.to_pylist() for column in columns), strict=True)
        largest = max(largest, len(windows))
    return sorted(found, key=str), largest


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_parts_are_the_whole(how, monkeypatch):
    whole, at_once = results(how)
    monkeypatch.setattr(window_join, "_PAIRS", 100)
    monkeypatch.setattr(window_join, "_FEW", 100)
    monkeypatch.setattr(window_join, "PORTION_ROWS", 1 << 20)
    parts, largest = results(how)
    assert parts == whole
    assert how in ("semi", "anti") or largest < 400 < at_once


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("portion", [1 << 20, 1000])
def test_lists_are_what_their_rows_have(how, portion, monkeypatch):
    monkeypatch.setattr(window_join, "PORTION_BYTES", portion)
    expected, _ = results(how)
    found, _ = results(how, lambda values: pl.concat_list(values, values + 1).alias("a"))
    assert found == sorted(
        ((window, key, *(None if n is None else [n, n + 1] for n in values)) for window, key, *values in expected), key=str
    )
