import pytest

from forebay.errors import InvalidArgument
from forebay.harness.arrivals import Bursty, Poisson
from forebay.harness.distributions import Constant, Ecdf, Normal, Zipfian
from forebay.harness.events import Source, Watermarks
from forebay.harness.experiment import Experiment
from forebay.harness.formats import trace_of
from forebay.harness.operators import IntervalJoin, SlidingHolistic
from forebay.harness.traces import Trace, TraceArrivals

WHOLE = """
workload = "interval-join"
stores = ["dict", "sqlite"]
memory_mb = 64
rate = 1000

[operator]
lower = "-1 minute"
upper = 5

[[source]]
events = 1000
seed = 3
late = 0.02
bound = "3 seconds"
arrivals = { kind = "bursty", rate = 100, burst = "1 second", pause = "2 seconds" }
keys = { kind = "zipfian", keys = 50 }

[source.sizes]
kind = "normal"
mean = 20
deviation = 2.5

[source.watermarks]
interval = "10 seconds"
behind = true

[[source]]
trace = "taxi.csv"
key = "medallion"
time = "pickup"
final = ["what", "END"]
unit = "s"
"""


def read(tmp_path, text):
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return Experiment.read(path)


def test_all_that_a_file_can_say(tmp_path):
    found = read(tmp_path, WHOLE)
    assert found.operator == IntervalJoin(-60_000_000, 5)
    assert (found.stores, found.memory, found.rate) == (("dict", "sqlite"), 64 << 20, 1000)
    assert found.streams == (
        Source(
            1000,
            Bursty(100, 1_000_000, 2_000_000),
            Zipfian(50),
            Normal(20, 2.5),
            Watermarks(interval=10_000_000, behind=True),
            late=0.02,
            bound=3_000_000,
            seed=3,
        ),
        Trace(tmp_path / "taxi.csv", "medallion", "pickup", final=("what", "END"), unit="s"),
    )


def test_most_has_a_default(tmp_path):
    found = read(tmp_path, 'workload = "sliding-holistic"\noperator = { size = "1 minute" }\n[[source]]\nevents = 5\n')
    assert found.operator == SlidingHolistic(size=60_000_000)
    assert found.streams == (Source(5),)
    assert found.streams[0].arrivals == Poisson(1000)
    assert found.streams[0].sizes == Constant(8)
    assert found.stores == ("dict",)


def test_an_ecdf_is_two_lists(tmp_path):
    keys = '{ kind = "ecdf", values = [1, 2], shares = [0.5, 1.0] }'
    assert read(tmp_path, f'workload = "aggregation"\n[[source]]\nevents = 5\nkeys = {keys}\n').streams[0].keys == Ecdf(
        (1, 2), (0.5, 1.0)
    )


def test_a_public_trace_is_named_by_its_format(tmp_path):
    text = 'workload = "aggregation"\n[[source]]\ntrace = "jobs.csv"\nformat = "FORM"\nbound = "1 second"\n'
    assert read(tmp_path, text.replace("FORM", "borg-jobs")).streams == (
        trace_of(tmp_path / "jobs.csv", "borg-jobs", bound=1_000_000),
    )
    with pytest.raises(InvalidArgument, match=r"toml:4: format is 'borg'; it must be one of borg-jobs"):
        read(tmp_path, text.replace("FORM", "borg"))


def test_arrivals_of_a_trace_are_beside_the_experiment(tmp_path):
    arrivals = '{ kind = "trace", path = "log.csv", time = "at", unit = "s" }'
    found = read(tmp_path, f'workload = "aggregation"\n[[source]]\nevents = 5\narrivals = {arrivals}\n')
    assert found.streams[0].arrivals == TraceArrivals(tmp_path / "log.csv", "at", unit="s")


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('"interval-join"', '"interval"', 2, "workload is 'interval'; it must be one of tumbling-incremental"),
        ('"sqlite"]', '"sqlit"]', 3, "there is no store 'sqlit'; use one of dict"),
        ("memory_mb = 64", "memory_mb = 0", 4, "memory_mb is 0"),
        ("rate = 1000", 'rate = "fast"', 5, "rate is 'fast'"),
        ("rate = 1000", "rate = inf", 5, "rate is inf"),
        ("memory_mb = 64", "memory_mb = nan", 4, "memory_mb is nan"),
        ('"interval-join"', '"no.such:Join"', 2, "the operator no.such:Join cannot be imported: No module"),
        ('"interval-join"', '"decimal:Decimal"', 2, "decimal:Decimal is no class of operators"),
        ("upper = 5", "uper = 5", 9, "there is no setting uper; there are lower, upper"),
        ('"-1 minute"', '"-1 parsec"', 8, "lower: '-1 parsec' is not a duration"),
        ("upper = 5", 'upper = "-1 hour"', 7, "nothing would match"),
        ("seed = 3", 'seed = "x"', 13, "seed is 'x'; it must be a whole number"),
        ("late = 0.02", "late = 2", 11, "late is 2; it must be from 0 to 1"),
        ("events = 1000\n", "", 11, "events is missing"),
        ("rate = 100,", "rate = -1,", 16, "rate is -1"),
        ('"zipfian", keys', '"zipf", keys', 17, "kind is 'zipf'; it must be one of constant, uniform, zipfian"),
        ('kind = "normal"\n', "", 19, "kind is missing; it must be one of"),
        ("behind = true", "behind = 1", 26, "behind is 1; it must be true or false"),
        ("mean = 20", "mean = true", 21, "mean is True; it must be a number"),
        ('interval = "10 seconds"', "interval = 0", 24, "must be above 0"),
        ('unit = "s"', 'unit = "h"', 28, "unit is 'h'"),
        ('["what", "END"]', '"END"', 32, "final is 'END'; it must be a list"),
        ('["what", "END"]', '["what", 4]', 32, "it must be a list, and each of it text"),
        ('["what", "END"]', '["what"]', 28, "final is ..what..; it must be a column, and its value"),
        ("[operator]", "[operater]", 7, "there is no setting operater"),
        ('workload = "interval-join"', 'workload = "aggregation"', 8, "there is no setting lower; there are none"),
    ],
)
def test_an_error_names_the_line(tmp_path, old, new, line, message):
    assert old in WHOLE
    with pytest.raises(InvalidArgument, match=message) as raised:
        read(tmp_path, WHOLE.replace(old, new, 1))
    assert f"experiment.toml:{line}: " in str(raised.value)


def test_sources_are_as_many_as_inputs(tmp_path):
    with pytest.raises(InvalidArgument, match=r"toml:2: tumbling-join has 2 inputs; there are 1 times"):
        read(tmp_path, 'workload = "tumbling-join"\n[[source]]\nevents = 1\n')
    with pytest.raises(InvalidArgument, match=r"at least one \[\[source\]\]"):
        read(tmp_path, 'workload = "aggregation"\n')


def test_what_is_no_experiment_is_an_error(tmp_path):
    with pytest.raises(InvalidArgument, match=r"is not a TOML file: .*line 1"):
        read(tmp_path, "workload aggregation")
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        Experiment.read(tmp_path / "none.toml")
