"""Rows by key and then by time."""

import numpy as np
import pytest

from forebay.engine.ordering import close_together, ordered


@pytest.mark.parametrize("in_time", [True, False])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
def test_the_order_is_that_of_a_sort(rows, dtype, in_time):
    drawn = np.random.default_rng(rows)
    keys, times = drawn.integers(0, 1 + rows // 3, rows).astype(dtype), drawn.integers(-5, 20, rows)
    times = np.sort(times) if in_time else times
    order, ends = ordered(keys, times, 1 + rows // 3)
    assert order.tolist() == np.lexsort((times, keys)).tolist()
    assert ends.tolist() == [np.count_nonzero(keys <= key) for key in range(1 + rows // 3)]


@pytest.mark.parametrize("most", [10, 1 << 50])
def test_keys_keep_their_order_in_few_numbers(most):
    drawn = np.random.default_rng(most)
    given = [np.zeros(1, np.int64), drawn.integers(0, most, 50), drawn.integers(0, most, 20), np.empty(0, np.int64)]
    numbers, count = close_together(*given)
    assert [len(each) for each in numbers] == [1, 50, 20, 0]
    before, after = np.concatenate(given), np.concatenate(numbers)
    assert (np.sign(np.subtract.outer(before, before)) == np.sign(np.subtract.outer(after, after))).all()
    assert after.max() < count <= 4 * len(after)
    assert numbers[0].tolist() == [0]
