"""Partitions are spread evenly, none moves that need not, and those of a lost executor go to their state."""

import random
from collections import Counter

import pytest

from forebay.replication.spreading import spread


def drawn(seed, *, lost):
    """Executors of which some have just joined, where the partitions are, and who has their state."""
    chance = random.Random(seed)
    executors = [str(each) for each in range(chance.randint(1, 5))]
    began = executors[: chance.randint(1, len(executors))]
    before = {partition: chance.choice([*began, *lost]) for partition in range(chance.randint(1, 40))}
    near = {partition: chance.sample(executors, chance.randint(0, len(executors))) for partition in before}
    return executors, before, near


@pytest.mark.parametrize("seed", range(200))
def test_every_executor_has_its_share_with_the_fewest_moves(seed):
    executors, before, near = drawn(seed, lost=[])
    moves = spread(before, dict.fromkeys(executors, 1), near, dict.fromkeys(before, 1.0))
    held, had = Counter((before | moves).values()), Counter(before.values())
    least, more = divmod(len(before), len(executors))
    shares = [least + (place < more) for place in range(len(executors))]
    assert sorted((held[each] for each in executors), reverse=True) == shares
    kept = sum(map(min, sorted((had[each] for each in executors), reverse=True), shares))
    assert len(moves) == len(before) - kept


@pytest.mark.parametrize("level", [False, True])
@pytest.mark.parametrize("seed", range(50))
def test_lost_partitions_go_to_their_state(seed, level):
    executors, before, near = drawn(seed, lost=["lost"])
    moves = spread(before, dict.fromkeys(executors, 1), near, dict.fromkeys(before, 1.0), level=level)
    lost = {partition for partition, executor in before.items() if executor == "lost"}
    assert lost <= moves.keys()
    assert all(moves[partition] in (near[partition] or executors) for partition in lost)
    assert level or lost == moves.keys()
