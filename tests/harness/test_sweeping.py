import polars as pl
import pytest
from typer.testing import CliRunner

from forebay.cli import app
from forebay.errors import ForebayError
from forebay.harness.sweeping import varied

EXPERIMENT = """workload = "sliding-incremental"
[operator]
size = "10 seconds"
[[source]]
events = 4000
watermarks = { events = 100 }
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(EXPERIMENT)
    return path


def sweep(*arguments):
    return CliRunner().invoke(app.app, ["harness", "sweep", *map(str, arguments)], catch_exceptions=False).output


def test_all_combinations_are_made_and_named_apart(experiment):
    sweep = varied(experiment, ["operator.slide=1s,5s", "source.watermarks.events=10, 1000"])
    assert [(each.operator.slide, each.streams[0].watermarks.events) for each in sweep.values()] == [
        (1_000_000, 10),
        (1_000_000, 1000),
        (5_000_000, 10),
        (5_000_000, 1000),
    ]
    assert next(iter(sweep)) == "slide = 1s, events = 10"
    both = varied(experiment, ["source.events=10", "source.watermarks.events=5"])
    assert list(both) == ["source.events = 10, source.watermarks.events = 5"]


def test_amplification_is_the_size_over_the_slide(experiment, tmp_path):
    out = tmp_path / "report"
    output = sweep(experiment, "--vary", "operator.slide=1s,2s,5s", "--events", 3000, "--out", out)
    assert "slide = 5s" in output
    table = pl.read_csv(out / "amplification.csv")
    # of 10, 5 and 2 windows each event reads and writes, and each window is read and deleted
    assert table["trace"].to_list() == ["slide = 1s", "slide = 2s", "slide = 5s"]
    assert [round(each / windows, 1) for each, windows in zip(table["events"], (10, 5, 2), strict=True)] == pytest.approx(
        [table["events"][0] / 10] * 3, rel=0.15
    )
    working = pl.read_csv(out / "working-set.csv").group_by("trace", maintain_order=True).agg(pl.col("keys").max())
    assert working["keys"].is_sorted(descending=True)


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("operator.slide", "write a setting and its values"),
        ("operator.slide=", "write a setting and its values"),
        ("operator.gap=1s", r"experiment.toml:2: there is no setting gap"),
        ("operator.slide=fast", "'fast' is not a duration"),
        ("source.3.events=5", "there is no source.3.events to set"),
        ("workload.name=x", "there is no workload.name to set"),
    ],
)
def test_what_cannot_be_varied(experiment, tmp_path, vary, message):
    with pytest.raises(ForebayError, match=message):
        sweep(experiment, "--vary", vary, "--out", tmp_path / "report")
    assert not (tmp_path / "report").exists()
