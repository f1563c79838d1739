import numpy as np
import polars as pl

from forebay.aggregates import hyperloglog
from forebay.aggregates.grouping import Groups


def test_code_of_a_hash_by_hand():
    # precision 4: the index is the top 4 bits, the rank counts the zeros after them
    hashes = pl.Series([0b0001 << 60, (0b0011 << 60) | (1 << 58), None, -1])
    assert hyperloglog.codes(hashes, 4).to_list() == [1 * 64 + 61, 3 * 64 + 2, None, 15 * 64 + 1]


def test_a_state_has_one_code_of_each_register():
    groups, _ = Groups.of(pl.DataFrame({"group": [2, 3, 1, 1, 1, 1, 2]}), ["group"])
    codes = pl.Series([None, None, 64 + 3, 128 + 1, 64 + 5, 64 + 3, 7], dtype=pl.UInt32)
    assert hyperloglog.states(groups, codes).to_list() == [[7], [], [64 + 5, 128 + 1]]


def test_merged_states_are_those_of_all_codes():
    drawn = np.random.default_rng(1)
    rows = pl.DataFrame({"group": drawn.integers(0, 30, 2000), "part": drawn.integers(0, 5, 2000)})
    codes = pl.Series(drawn.integers(0, 20, 2000) * 64 + drawn.integers(1, 9, 2000), dtype=pl.UInt32)
    codes = codes.set(pl.Series(drawn.random(2000) < 0.9), None)  # so that some parts have none
    in_parts, columns = Groups.of(rows, ["group", "part"])
    parts = pl.DataFrame(columns).with_columns(state=hyperloglog.states(in_parts, codes))
    whole, columns = Groups.of(parts, ["group"])
    expected, keys = Groups.of(rows, ["group"])
    assert columns["group"].to_list() == keys["group"].to_list()
    assert hyperloglog.merged(whole, parts["state"]).to_list() == hyperloglog.states(expected, codes).to_list()


def test_linear_counting_of_few_values():
    tables = hyperloglog.Tables(threshold=400.0, estimates=(), biases=(), neighbours=6)
    states = pl.Series([[64 * i + 1 for i in range(10)], []], dtype=pl.List(pl.UInt32))
    assert hyperloglog.estimate(states, 9, tables).tolist() == [10, 0]
