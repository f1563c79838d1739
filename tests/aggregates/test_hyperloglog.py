import polars as pl

from forebay.aggregates import hyperloglog


def test_code_of_a_hash_by_hand():
    # precision 4: the index is the top 4 bits, the rank counts the zeros after them
    hashes = pl.DataFrame({"h": [0b0001 << 60, (0b0011 << 60) | (1 << 58), -1, None]}, schema={"h": pl.Int64})
    codes = hashes.select(hyperloglog.codes(pl.col("h"), 4))["h"].to_list()
    assert codes == [1 * 64 + 61, 3 * 64 + 2, 15 * 64 + 1]


def test_a_state_has_one_code_of_each_register():
    codes = pl.DataFrame({"group": [1, 1, 1, 1, 2], "code": [64 + 3, 128 + 1, 64 + 5, 64 + 3, 7]})
    highest = codes.group_by("group", maintain_order=True).agg(hyperloglog.highest(pl.col("code")))
    assert highest["code"].to_list() == [[64 + 5, 128 + 1], [7]]


def test_linear_counting_of_few_values():
    tables = hyperloglog.Tables(threshold=400.0, estimates=(), biases=(), neighbours=6)
    states = pl.Series([[64 * i + 1 for i in range(10)], []], dtype=pl.List(pl.UInt32))
    assert hyperloglog.estimate(states, 9, tables).tolist() == [10, 0]
