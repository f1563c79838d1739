import pytest
from typer.testing import CliRunner

from forebay.cli import app
from forebay.errors import ForebayError, InvalidArgument
from forebay.harness.access import DELETE, GET, MERGE, PUT, accesses
from forebay.harness.advice import Ranked, Sample, advised, enough, pattern_of, reasons, verdict
from forebay.harness.distributions import Uniform
from forebay.harness.driver import Driver
from forebay.harness.events import Source
from forebay.harness.operators import WORKLOADS

PATTERNS = {
    "tumbling-incremental": {"RMW"},
    "sliding-incremental": {"RMW"},
    "session-holistic": {"AUR"},
    "tumbling-holistic": {"AAR"},
    "sliding-holistic": {"AAR"},
    "tumbling-join": {"AAR"},
    "sliding-join": {"AAR"},
    "interval-join": {"RMW"},
    "aggregation": {"RMW"},
    "continuous-join": {"RMW", "AUR"},
}


def invoke(*arguments):
    return CliRunner().invoke(app.app, ["harness", "advise", *map(str, arguments)], catch_exceptions=False).output


@pytest.mark.parametrize("name", list(PATTERNS))
def test_patterns_are_those_of_the_operators(name):
    operator = WORKLOADS[name]()
    sources = [Source(3000, keys=Uniform(0, 50), final=0.1, seed=seed) for seed in range(operator.inputs)]
    sample = Sample.of(list(Driver(operator).accesses(sources)))
    assert set(sample.patterns) == PATTERNS[name]
    assert sum(sample.patterns.values()) == pytest.approx(1)


def test_sessions_that_end_together_are_not_aligned_windows():
    """With a gap as long as the sources', many keys have sessions of one start and end, as aligned windows do."""
    rows = [(MERGE, 0, key, 0, 10, 5, 0) for key in range(5000)]
    assert set(Sample.of([accesses(rows)]).patterns) == {"AAR"}
    assert set(Sample.of([accesses(rows)], merging=True).patterns) == {"AUR"}


def test_a_value_is_as_large_as_it_was_between_two_deletions():
    rows = [(operation, 0, 1, 0, 10, 100, 0) for operation in (MERGE, MERGE, MERGE, DELETE, MERGE, MERGE)]
    sample = Sample.of([accesses(rows)])
    assert sample.key_bytes - Sample.of([accesses(rows[:3])]).key_bytes == 0
    assert Sample.of([accesses(rows[:2])]).key_bytes < sample.key_bytes


def test_a_sample_says_what_state_takes():
    rows = [(MERGE, 0, key, 0, 10, 100, 0) for key in (1, 2, 3) for _ in range(4)]
    rows += [(operation, 0, key, 0, 10, 0, 0) for key in (1, 2, 3) for operation in (GET, DELETE)]
    sample = Sample.of([accesses(rows)])
    assert (sample.working, sample.merges_per_key, sample.key_bytes) == (3, 4, 425)
    assert sample.state_bytes == 1275
    said = " ".join(reasons(sample, 1000, [Ranked("lmdb", 9.0, 9.0, 9.0, 1.0), Ranked("rocksdb", 8.0, 8.0, 8.0, 1.0)]))
    assert "67% of accesses append, 4.0 times to a key" in said
    assert "they are at place 2" in said
    assert "3 keys, about 1.25 KB: it is more than the 1,000 bytes" in said


def test_state_that_grows_is_said_to():
    growing = [accesses([(PUT, 0, key, 0, 0, 8, 0) for key in range(1000)])]
    assert "still growing" in " ".join(reasons(Sample.of(growing), 1 << 20, []))
    steady = [accesses([(PUT, 0, key % 10, 0, 0, 8, 0) for key in range(1000)])]
    assert "still growing" not in " ".join(reasons(Sample.of(steady), 1 << 20, []))


def test_a_dict_is_not_advised_and_forebay_is_placed():
    floor, lmdb = Ranked("dict", 90.0, 90.0, 90.0, 1.0), Ranked("lmdb", 9.0, 8.0, 10.0, 2.0)
    ours, sample = Ranked("forebay-rmw", 3.0, 2.0, 4.0, 1.5), Sample.of([accesses([(PUT, 0, 1, 0, 0, 8, 0)])])
    ranking = [floor, lmdb, ours]
    assert advised(ranking) is lmdb
    assert list(verdict(ranking)) == [
        "lmdb is the fastest, 3.0 times as fast as forebay-rmw, which is next.",
        "forebay-rmw has the lowest p99.9: 1.5 us, where lmdb has 2.0.",
    ]
    assert "forebay-rmw, is at 0.33 of lmdb" in " ".join(pattern_of(sample, ranking))
    assert "forebay-rmw, is the fastest" in " ".join(pattern_of(sample, [ours]))
    near = Ranked("forebay-rmw", 8.5, 8.2, 8.8, 1.5)
    assert "within the noise of the fastest" in " ".join(pattern_of(sample, [lmdb, near]))
    with pytest.raises(InvalidArgument, match="no store that keeps state on disk"):
        advised([floor])


def test_memory_that_makes_no_difference_is_not_advised():
    full, half = Ranked("sqlite", 9.0, 8.0, 10.0, 1.0), Ranked("sqlite", 5.0, 4.0, 6.0, 1.0)
    assert enough([(64, full), (16, half)]) == (64, "memory_mb = 64; with 16 it is at 0.56.")
    assert enough([(64, full), (16, full)]) == (16, "memory_mb = 16 is within the noise of 64.")
    assert "does not bound" in enough([(64, Ranked("lmdb", 9.0, 8.0, 10.0, 1.0))])[1]


def test_advice_names_a_store_and_its_evidence(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text('workload = "session-holistic"\nmemory_mb = 16\nrate = 1e12\n[[source]]\nevents = 2000\n')
    output = invoke(path, "--stores", "dict,sqlite,forebay-aar", "--sample", 1000, "--rounds", 2, "--seconds", 5)
    for shown in (
        "Use sqlite. sqlite is the only store that was measured and keeps state on disk.",
        "forebay-aar is left out: forebay-aar holds windows",
        "forebay's pattern AUR",
        "The first 1,000 accesses",
        "below the",  # the rate that no store reaches
        "memory_mb = ",
    ):
        assert shown in output, output


def test_advice_on_nothing_is_an_error(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text('workload = "aggregation"\n[[source]]\nevents = 0\n')
    with pytest.raises(ForebayError, match="has no events"):
        invoke(path)
    with pytest.raises(ForebayError, match="there is no store 'berkeley'"):
        invoke(path, "--stores", "berkeley")
