import json
import os
import re
import signal
import struct
import subprocess
import sys
import time

import polars as pl
import pytest
from typer.testing import CliRunner

from forebay.cli import app
from forebay.errors import ForebayError
from forebay.harness.access import accesses, write

PROGRAM = [sys.executable, "-c", "from forebay.cli.app import main; main()", "harness"]


def invoke(*arguments):
    return CliRunner().invoke(app.app, ["harness", *map(str, arguments)], catch_exceptions=False).output


def drawn(page, name):
    """The rows that a chart of a page has."""
    found = re.search(rf'vegaEmbed\("#chart-{re.escape(name)}",(.*),{{actions:false}}\);', page)
    datasets = json.loads(found[1].replace("<\\/", "</"))["datasets"]
    return [row for rows in datasets.values() for row in rows]


def is_picture(path):
    """Whether it is a PNG of some size."""
    head = path.read_bytes()[:24]
    return head[:8] == b"\x89PNG\r\n\x1a\n" and min(struct.unpack(">II", head[16:])) > 100


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(
        'workload = "aggregation"\nstores = ["dict", "sqlite", "forebay-aar"]\n[[source]]\nevents = 3000\nfinal = 0.1\n'
    )
    return path


@pytest.mark.thorough
def test_a_comparison_is_drawn_as_its_csv_says(experiment, tmp_path):
    out = tmp_path / "report"
    output = invoke("compare", experiment, "--workloads", "aggregation,tumbling-join,ycsb-a", "--limit", 1000, "--out", out)
    assert "tumbling-join" in output
    page = (out / "report.html").read_text()
    runs = pl.read_csv(out / "runs.csv")
    assert runs.height == 9
    assert runs.filter(pl.col("why") == "")["accesses"].to_list() == [1000] * 7
    for name in ("figure-13-throughput-small", "figure-13-p999-small", "figure-12-throughput"):
        figure, measure = pl.read_csv(out / f"{name}.csv"), name.split("-")[2]
        shown = {(row["workload"], row["store"]): row[measure] for row in drawn(page, name)}
        known = {(row["workload"], row["store"]): row[measure] for row in figure.iter_rows(named=True)}
        assert shown == pytest.approx(known)
        assert is_picture(out / f"{name}.png")
    latencies = pl.read_csv(out / "latencies.csv")
    assert latencies.group_by("workload", "store").agg(pl.col("count").sum())["count"].to_list() == [1000] * 7
    assert (latencies["p50"] <= latencies["p99.99"]).all()
    assert (latencies["p99.99"] <= latencies["max"]).all()
    for measure in ("memory", "disk"):
        assert is_picture(out / f"{measure}-small.png")
        ends = pl.read_csv(out / f"{measure}-small.csv").group_by("workload", "store").agg(pl.col("accesses").max())
        assert ends["accesses"].to_list() == [1000] * 5
    refused = pl.read_csv(out / "refused.csv").rows()
    assert [row[:4] for row in refused] == [
        ("small", "aggregation", "generated", "forebay-aar"),
        ("YCSB", "ycsb-a", "generated", "forebay-aar"),
    ]
    assert "windows that are the same for all keys" in page
    assert re.search(r"forebay</td><td>0\.1\.0", page)  # the version


@pytest.mark.thorough
def test_stores_are_compared_in_batches_too(experiment, tmp_path):
    out = tmp_path / "report"
    settings = ["--stores", "dict,sqlite", "--limit", 3000, "--batched", "--batch-rows", 1000]
    invoke("compare", experiment, *settings, "--out", out)
    runs = pl.read_csv(out / "runs.csv")
    assert runs["accesses"].to_list() == [3000, 3000]
    assert runs["most"].min() > 100  # microseconds of a batch
    assert "in batches of 1,000" in (out / "report.html").read_text()


@pytest.mark.thorough
def test_a_workload_whose_accesses_cannot_be_made_leaves_the_others(tmp_path):
    experiment = tmp_path / "short.toml"  # windows of half a second, a slide of a whole one
    experiment.write_text(
        'workload = "tumbling-join"\nstores = ["dict"]\n[operator]\nsize = "500 ms"\n'
        "[[source]]\nevents = 3000\n[[source]]\nevents = 3000\n"
    )
    out = tmp_path / "report"
    chosen = "sliding-join,aggregation"
    invoke("compare", experiment, "--workloads", chosen, "--contrast", "--limit", 500, "--out", out)
    why = {(row["workload"], row["kind"]): row["why"] for row in pl.read_csv(out / "runs.csv").iter_rows(named=True)}
    assert all(why["sliding-join", kind] for kind in ("generated", "YCSB-S"))
    assert not any(why["aggregation", kind] for kind in ("generated", "YCSB-S"))


def test_captured_accesses_are_as_many_as_those_beside_them(experiment, tmp_path):
    invoke("generate", experiment, tmp_path / "trace.arrow")
    arguments = ["--captured", f"aggregation={tmp_path / 'trace.arrow'}", "--stores", "dict", "--limit", 500]
    invoke("compare", experiment, *arguments, "--out", tmp_path / "report")
    assert pl.read_csv(tmp_path / "report" / "runs.csv")["accesses"].to_list() == [500, 500]


def test_a_report_needs_no_network(experiment, tmp_path):
    invoke("compare", experiment, "--stores", "dict", "--limit", 100, "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    markup, script = page.split("<script", 1)
    assert not re.search(r"<(img|link|iframe)|@import|url\(|https?:", markup)
    assert script.startswith(' type="module">')  # what draws stands in the page
    assert script.endswith("</script>")


def test_ycsb_and_captured_accesses_stand_beside_those_generated(experiment, tmp_path):
    invoke("generate", experiment, tmp_path / "trace.arrow")
    arguments = ["--captured", f"aggregation={tmp_path / 'trace.arrow'}", "--contrast", "--stores", "dict", "--limit", 500]
    invoke("compare", experiment, *arguments, "--rounds", 2, "--out", tmp_path / "report")
    figure = pl.read_csv(tmp_path / "report" / "figure-11-throughput.csv")
    assert figure["kind"].to_list() == ["generated", "captured", "YCSB-S", "YCSB-H", "YCSB-L"]
    assert pl.read_csv(tmp_path / "report" / "runs.csv")["round"].to_list() == [0, 1] * 5


def test_operators_that_share_a_store_are_drawn_as_they_were_measured(experiment, tmp_path):
    given, other = tmp_path / "together.csv", tmp_path / "other.toml"
    other.write_text('workload = "sliding-holistic"\n[[source]]\nevents = 500\n')
    invoke("run", experiment, "--beside", other, "--store", "dict", "--out", given)
    invoke("compare", experiment, "--stores", "dict", "--limit", 100, "--concurrent", given, "--out", tmp_path / "report")
    measured = pl.read_csv(given)
    assert set(measured["beside"]) == {"alone", "aggregation", "sliding-holistic"}
    page = (tmp_path / "report" / "report.html").read_text()
    assert sorted(row["throughput"] for row in drawn(page, "figure-14-throughput")) == sorted(measured["throughput"])


def test_a_store_that_fails_does_not_end_the_comparison(experiment, tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text(
        "from forebay.harness.stores.dictionary import Dictionary\n"
        "class Failing(Dictionary):\n    def put(self, key, value):\n        raise RuntimeError('the moon is wrong')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    invoke("compare", experiment, "--stores", "failing:Failing,dict", "--limit", 100, "--out", tmp_path / "report")
    rows = pl.read_csv(tmp_path / "report" / "runs.csv").rows(named=True)
    assert [(row["store"], row["accesses"], row["why"]) for row in rows] == [
        ("failing:Failing", 0, "the moon is wrong"),
        ("dict", 100, ""),
    ]


def test_a_run_ends_after_its_time(experiment, tmp_path):
    experiment.write_text(experiment.read_text().replace("3000", "500_000"))
    arguments = ["--stores", "sqlite", "--limit", 10_000_000, "--seconds", 0.01, "--out", tmp_path / "report"]
    invoke("compare", experiment, *arguments)
    run = pl.read_csv(tmp_path / "report" / "runs.csv").row(0, named=True)
    assert not run["whole"]
    assert 0 < run["accesses"] < 1_000_000
    assert pl.read_csv(tmp_path / "report" / "early.csv")["accesses"].to_list() == [run["accesses"]]


@pytest.mark.thorough
def test_an_interrupted_comparison_leaves_a_report_of_what_was_done(experiment, tmp_path):
    experiment.write_text(experiment.read_text().replace("3000", "3_000_000"))
    out, work = tmp_path / "report", tmp_path / "work"
    work.mkdir()
    arguments = [
        "compare",
        experiment,
        "--stores",
        "dict,sqlite",
        "--workloads",
        "aggregation,interval-join",
        "--rounds",
        500,
    ]
    arguments += ["--limit", 20_000, "--out", out, "--directory", work]
    running = subprocess.Popen([*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    try:
        until, seen = time.monotonic() + 120, set()
        while time.monotonic() < until and len(seen) < 8:  # each run has a directory of its own
            seen |= set(work.glob("*/forebay-harness-*"))
            time.sleep(0.002)
        os.kill(running.pid, signal.SIGINT)
        output, _ = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 130, output
    runs = pl.read_csv(out / "runs.csv")
    assert 0 < runs.height < 2000
    page = (out / "report.html").read_text()
    assert f"Ended from the keyboard after {runs.height} of 2000 runs" in page
    assert {row["store"] for row in drawn(page, "figure-13-throughput-small")} <= {"dict", "sqlite"}
    assert not list(work.iterdir())


def test_traces_are_drawn_as_their_csv_says(experiment, tmp_path):
    out = tmp_path / "report"
    for seed in (1, 2):
        experiment.write_text(re.sub(r"seed = \d\n", "", experiment.read_text()) + f"seed = {seed}\n")
        invoke("generate", experiment, tmp_path / f"trace{seed}.arrow")
    traces = [tmp_path / "trace1.arrow", tmp_path / "trace2.arrow"]
    output = invoke("analyse", *traces, "--events", 3000, "--contrast", "--out", out)
    assert "accesses per event" in output
    page = (out / "report.html").read_text()
    shares = pl.read_csv(out / "composition.csv").filter(pl.col("trace") == "trace1")
    assert shares["share"].to_list() == [0.5, 0.5, 0, 0]
    assert pl.read_csv(out / "amplification.csv")["events"].to_list() == [2, 2]
    pictures = {path.stem for path in out.glob("*.png")}
    assert pictures == {
        *("composition", "amplification", "working-set", "figure-5-distances", "figure-5-sequences"),
        *("figure-7-distances", "figure-7-sequences", "figure-10-distances", "figure-10-sequences"),
    }
    for name in pictures:
        assert is_picture(out / f"{name}.png")
        assert len(drawn(page, name)) == pl.read_csv(out / f"{name}.csv").height
    distances = pl.read_csv(out / "figure-7-distances.csv")
    assert distances.group_by("panel", "series").agg(pl.col("share").sum())["share"].to_list() == pytest.approx([1] * 6)
    apart = pl.read_csv(out / "apart.csv").filter(pl.col("of") == "keys, by rank")
    assert apart["p_value"][0] > 0.05  # they differ in the seed only
    assert pl.read_csv(out / "distortion.csv")["ks"].to_list() == [0, 0]  # an aggregation's state keys are event keys
    beside = pl.read_csv(out / "ycsb-apart.csv")
    assert beside.select("trace", "beside", "of").n_unique() == beside.height == 8
    assert beside["p_value"].min() < 0.05
    lives = pl.read_csv(out / "times-to-live.csv")
    assert lives["accesses of"].to_list() == ["trace", "YCSB-S", "YCSB-L"] * 2


def test_a_trace_of_one_access_is_drawn(tmp_path):
    write(tmp_path / "one.arrow", [accesses([(0, 0, 1, 0, 0, 0, 5)])])
    invoke("analyse", tmp_path / "one.arrow", "--out", tmp_path / "report")
    assert is_picture(tmp_path / "report" / "composition.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "{experiment}", "--workloads", "agregation"), "there is no workload 'agregation'; there are tumbling"),
        (("compare", "{experiment}", "--stores", "berkeley"), "there is no store 'berkeley'"),
        (("compare", "{experiment}", "--stores", "no.such:Store"), "there is no store 'no.such:Store'"),
        (("compare", "{experiment}", "--out", "{dir}"), "exists already; name a directory that does not"),
        (("compare", "{dir}/none.toml"), "cannot be read: No such file"),
        (("compare", "{experiment}", "{experiment}"), "two of the experiments have one name"),
        (("compare", "{experiment}", "--captured", "aggregation"), "write WORKLOAD=TRACE"),
        (("compare", "{experiment}", "--captured", "aggregation={dir}/none.arrow"), "there is no trace"),
        (("compare", "{experiment}", "--captured", "interval-join={dir}/one.arrow"), "interval-join, which is not compared"),
        (("compare", "{experiment}", "--concurrent", "{given}"), "has no column beside, store"),
        (("compare", "{missing}"), r"none.csv cannot be read"),
        (("analyse", "{dir}/none.arrow", "--out", "{dir}/out"), "there is no trace"),
        (("analyse", "{experiment}", "--out", "{dir}/out"), "not an Arrow file"),
        (("analyse", "{dir}/a", "--events", "1", "--events", "2"), "events is given 2 times and there are 1 traces"),
    ],
)
def test_bad_arguments_of_reports(experiment, tmp_path, arguments, message):
    missing, given = tmp_path / "missing.toml", tmp_path / "given.csv"
    write(tmp_path / "one.arrow", [accesses([(0, 0, 1, 0, 0, 0, 5)])])
    given.write_text("operator,throughput,p999\nsliding,9,9\n")
    missing.write_text('workload = "aggregation"\n[[source]]\ntrace = "none.csv"\nkey = "a"\ntime = "b"\n')
    with pytest.raises(ForebayError, match=message):
        invoke(*(each.format(dir=tmp_path, experiment=experiment, missing=missing, given=given) for each in arguments))
    assert not (tmp_path / "out").exists()


def test_an_error_of_a_report_is_exit_code_2(experiment, tmp_path):
    arguments = ["compare", str(experiment), "--stores", "berkeley", "--out", str(tmp_path / "report")]
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no store 'berkeley'" in done.stderr
    assert not (tmp_path / "report").exists()


def test_without_what_draws_the_extra_is_named(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ForebayError, match=r"a report needs altair; pip install '\.\[harness\]'"):
        invoke("compare", experiment, "--out", tmp_path / "report")
