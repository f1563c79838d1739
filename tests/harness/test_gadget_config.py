import pytest

from forebay.errors import InvalidArgument
from forebay.harness.arrivals import ConstantRate, Poisson
from forebay.harness.distributions import Constant, Hotspot, Normal, Sequential, Uniform, Zipfian
from forebay.harness.events import Source, Watermarks
from forebay.harness.gadget_config import read_gadget_config
from forebay.harness.operators import ContinuousJoin, IntervalJoin, SessionHolistic, SlidingIncremental
from forebay.harness.traces import Trace

SECOND = 1_000_000
ONE = """
############ the first event generator
first.event.generator.type = gadget
#options(constant, hotspot, zipf, sequential, uniform)
first.event.generator.key.popularity.distrib.type = zipf
first.event.generator.key.popularity.distrib.params.s = 1
first.event.generator.key.popularity.distrib.params.keyspacesize= 1000000
first.event.generator.event.occurrence.gap.distrib.type = exponential
first.event.generator.event.occurrence.gap.distrib.params.lambda= 10
first.event.generator.watermark.frequency = 2
first.event.generator.outoforder.percentage = 2
first.event.generator.lateness.threshold = 3;
operator.type= sliding.keyed.incremental
expected.num.operations = 1000
window.length = 5
sliding.length = 1
#upper.bound = 180
operator.value.size.distrib.type = normal
operator.value.size.distrib.params.mean = 10
operator.value.size.distrib.params.sd = 2
wrapper.type = file
"""


def read(tmp_path, text):
    (tmp_path / "config.txt").write_text(text)
    return read_gadget_config(tmp_path / "config.txt")


def test_a_generated_source(tmp_path):
    found = read(tmp_path, ONE)
    assert found.operator == SlidingIncremental(size=5 * SECOND, slide=SECOND)
    watermarks = Watermarks(interval=2 * SECOND)
    assert found.streams == (Source(1000, Poisson(10), Zipfian(1_000_000, 1), Normal(10, 2), watermarks, 0.02, 3 * SECOND),)
    assert found.limit == 1000


def test_sources_from_files(tmp_path):
    (tmp_path / "jobs.txt").write_text("63,600000000,FINISH,u\n")
    trace = "S.event.generator.type = tracefile\nS.event.generator.key.index = 0\nS.event.generator.event.time.index = 1\n"
    trace += "S.event.generator.event.type.index = 2\nS.event.generator.file.path = jobs.txt\n"
    text = trace.replace("S.", "first.") + trace.replace("S.", "second.")
    found = read(tmp_path, f"{text}operator.type = continuous.join\nexpected.num.operations = 5\n")
    assert found.operator == ContinuousJoin()
    assert len(found.streams) == 2
    assert isinstance(found.streams[0], Trace)
    (block,) = found.streams[0].blocks()
    assert (block.key.tolist(), block.time.tolist(), block.final.tolist()) == ([63], [600 * SECOND], [True])


@pytest.mark.parametrize(
    ("kind", "lines", "operator"),
    [
        ("session.holistic", "lateness.length = 1", SessionHolistic(gap=5 * SECOND, lateness=SECOND)),
        ("sliding.all.incremental", "", SlidingIncremental()),
    ],
)
def test_operators_have_their_settings(tmp_path, kind, lines, operator):
    found = read(tmp_path, ONE.replace("sliding.keyed.incremental", kind) + lines)
    assert found.operator == operator
    assert (found.streams[0].keys == Constant(0)) == (".all." in kind)


def test_an_interval_join_has_bounds(tmp_path):
    second = ONE.replace("first.", "second.").split("operator.type")[0]
    text = second + ONE.replace("sliding.keyed.incremental", "join.interval") + "lower.bound = -120\nupper.bound = 180\n"
    found = read(tmp_path, text)
    assert found.operator == IntervalJoin(-120 * SECOND, 180 * SECOND)
    assert found.streams[0].seed != found.streams[1].seed


@pytest.mark.parametrize(
    ("kind", "parameters", "expected"),
    [
        ("constant", "constant = a", Constant(0)),
        ("uniform", "a = 3\nP.b = 9", Uniform(3, 9)),
        ("sequential", "keyspacesize = 7", Sequential(7)),
        ("hotspot", "keyspacesize = 7\nP.hotspotfraction = 0.1\nP.hotoperationfraction = 0.9", Hotspot(7, 0.1, 0.9)),
    ],
)
def test_distributions_of_keys(tmp_path, kind, parameters, expected):
    prefix = "first.event.generator.key.popularity.distrib"
    lines = f"{prefix}.type = {kind}\n{prefix}.params.{parameters}\n".replace("P.", f"{prefix}.params.")
    lines += "first.event.generator.event.occurrence.gap.distrib.type = constant\n"
    lines += "first.event.generator.event.occurrence.gap.distrib.params.constant = 0.5\n"
    found = read(tmp_path, ONE + lines)
    assert found.streams[0].keys == expected
    assert found.streams[0].arrivals == ConstantRate(2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("= zipf", "= zpf", r"config.txt:5: .*distrib.type is 'zpf'; it must be one of constant, hotspot"),
        (
            "operator.type= sliding.keyed.incremental",
            "operator.type = flink.replayer",
            r"txt:13: operator.type is 'flink.replayer'",
        ),
        ("window.length = 5\n", "", r"config.txt: window.length is missing"),
        ("window.length = 5", "window.length = x", r"txt:15: window.length is 'x'; it must be a number"),
        ("window.length = 5", "window.length = 0.5", r"txt:15: window.length is 0.5; it must be a whole number"),
        ("window.length = 5", "window.length = inf", r"txt:15: window.length is inf; it must be a whole number"),
        ("window.length = 5", "window.length = 0", r"config.txt: size is 0"),
        ("window.length = 5", "window.length", r"txt:15: 'window.length' is not of the form name = value"),
    ],
)
def test_an_error_names_the_line(tmp_path, old, new, message):
    assert old in ONE
    with pytest.raises(InvalidArgument, match=message):
        read(tmp_path, ONE.replace(old, new))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_gadget_config(tmp_path / "config.txt")
