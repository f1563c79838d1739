import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from installed_stores import require
from typer.testing import CliRunner

from forebay.cli import app, terminal
from forebay.errors import ForebayError, InvalidArgument
from forebay.harness import comparison
from forebay.harness.access import accesses, read, write
from forebay.harness.stores import STORES

PROGRAM = [sys.executable, "-c", "from forebay.cli.app import main; main()", "harness"]


def invoke(*arguments):
    return CliRunner().invoke(app.app, ["harness", *map(str, arguments)], catch_exceptions=False).output


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text('workload = "tumbling-incremental"\nstores = ["dict", "sqlite"]\n[[source]]\nevents = 5000\n')
    return path


def test_workloads_are_listed():
    output = invoke("workloads")
    for shown in ("session-holistic", "continuous-join", "stores: dict, sqlite"):
        assert shown in output


def test_generate_writes_a_trace_that_analyse_describes_and_run_replays(experiment, tmp_path):
    out = tmp_path / "trace.arrow"
    output = invoke("generate", experiment, out)
    for shown in ("5,000, 0 times too late", "GET", "0.500", "accesses/s"):
        assert shown in output
    rows = sum(batch.num_rows for batch in read(out))
    analysed = invoke("analyse", out, "--events", 5000)
    for shown in (f"{rows:,}", "accesses per event", "mean stack distance", "unique sequences of 10", "time to live, p99.9"):
        assert shown in analysed
    for run in (invoke("run", experiment), invoke("run", experiment, "--trace", out, "--store", "dict")):
        for shown in ("dict", f"{rows:,}", "accesses/s", "GET", "DELETE"):
            assert shown in run
    assert "sqlite" in invoke("run", experiment)


def test_ycsb_drives_stores_or_writes_a_trace(tmp_path):
    output = invoke("ycsb", "f", "--operations", 2000, "--store", "dict", "--store", "sqlite")
    for shown in ("YCSB F, zipfian", "dict", "sqlite", "accesses/s"):
        assert shown in output
    invoke("ycsb", "c", "--operations", 2000, "--requests", "latest", "--out", tmp_path / "trace.arrow")
    assert "1.000" in invoke("analyse", tmp_path / "trace.arrow")


def test_a_limit_is_of_traces_too(experiment, tmp_path):
    invoke("generate", experiment, tmp_path / "trace.arrow")
    experiment.write_text("limit = 321\n" + experiment.read_text())
    assert "│ 321" in invoke("run", experiment, "--trace", tmp_path / "trace.arrow", "--store", "dict")


def test_run_says_what_was_reached_of_a_rate(experiment):
    assert "the rate" not in invoke("run", experiment, "--store", "dict")
    experiment.write_text("rate = 1e12\n" + experiment.read_text())
    output = " ".join(invoke("run", experiment, "--store", "dict").split())
    assert re.search(r"dict: [\d,]+ accesses/s, where the rate is 1,000,000,000,000", output)


def test_run_gives_stores_batches(experiment):
    output = invoke("run", experiment, "--batched", "--batch-rows", 1000)
    for shown in ("batches of 1,000", "dict", "sqlite", "BATCH"):
        assert shown in output
    assert "DELETE" not in output


def test_run_beside_shows_each_operator_alone_and_in_company(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(terminal.console, "width", 200)
    (tmp_path / "other.toml").write_text('workload = "sliding-holistic"\nlimit = 5000\n[[source]]\nevents = 5000\n')
    output = invoke("run", experiment, "--beside", tmp_path / "other.toml")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "5,000" in line]
    one, other = "tumbling-incremental", "sliding-holistic"
    expected = [(other, "-"), (other, other), (other, one), (one, "-"), (one, other), (one, one)]
    assert [tuple(row[:2]) for row in rows] == expected * 2
    assert [row[4] for row in rows if row[1] == "-"] == ["1.00"] * 4
    assert output.index("dict: ") < output.index("sqlite: ")


def test_virtual_nodes_are_chosen_of_captured_accesses_only(experiment):
    for arguments in ((), ("--beside", experiment)):
        with pytest.raises(InvalidArgument, match="--vnode"):
            invoke("run", experiment, "--vnode", 1, *arguments)


def test_a_store_is_rehearsed_before_operators_share_it(experiment, monkeypatch):
    driven = []
    monkeypatch.setattr(comparison, "rehearse", lambda store, accesses, *more: driven.append(next(iter(accesses)).num_rows))
    invoke("run", experiment, "--beside", experiment, "--store", "dict")
    assert len(driven) == 2 and all(driven)


def test_traces_that_have_each_key_once_are_compared(tmp_path):
    for name, keys in (("once", range(50)), ("other", range(20, 70))):
        write(tmp_path / f"{name}.arrow", [accesses([(0, 0, key, 0, 0, 0, 5) for key in keys])])
    output = invoke("analyse", tmp_path / "once.arrow", tmp_path / "other.arrow")
    assert "event keys" in output
    assert "stack distances" not in output


def test_a_trace_may_be_called_like_what_it_is_compared_with(experiment, tmp_path):
    for name in ("plain", "shuffled"):
        invoke("generate", experiment, tmp_path / f"{name}.arrow")
    plain, shuffled = (invoke("analyse", tmp_path / f"{name}.arrow").splitlines() for name in ("plain", "shuffled"))
    (one,), (other,) = ([line for line in lines if "mean stack distance" in line] for lines in (plain, shuffled))
    assert one == other


def test_an_experiment_beside_itself_is_driven_twice(experiment, monkeypatch):
    monkeypatch.setattr(terminal.console, "width", 200)
    output = invoke("run", experiment, "--beside", experiment, "--store", "dict")
    for company in ("-", "tumbling-incremental"):
        assert output.count(f"│ tumbling-incremental │ {company} ") == 1


def test_an_error_ends_a_run_after_what_was_measured_is_shown(experiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    result = CliRunner().invoke(app.app, ["harness", "run", str(experiment), "--store", "dict", "--store", "rocksdb"])
    assert isinstance(result.exception, InvalidArgument)
    assert "accesses/s" in result.output


def test_all_names_of_stores_are_looked_up_first(experiment):
    result = CliRunner().invoke(app.app, ["harness", "run", str(experiment), "--store", "dict", "--store", "roksdb"])
    assert "there is no store 'roksdb'" in str(result.exception)
    assert "accesses/s" not in result.output


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in STORES if name not in ("dict", "redis")])
def test_a_full_disk_is_one_line_and_exit_code_2(name, tmp_path):
    """No file may become larger than a megabyte; what is written beyond fails as it does on a full disk."""
    require(name)
    (tmp_path / "experiment.toml").write_text(
        'workload = "tumbling-holistic"\nmemory_mb = 4\nlimit = 40_000\n[operator]\nsize = "1 hour"\n'
        "[[source]]\nevents = 40_000\nsizes = { kind = 'constant', value = 4000 }\n"
    )
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
    program = [
        sys.executable,
        "-c",
        limited + PROGRAM[2],
        "harness",
        "run",
        str(tmp_path / "experiment.toml"),
        "--store",
        name,
    ]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    shown = done.stdout + done.stderr
    assert done.returncode == 2, shown
    assert re.search(r"(failed after [\d,]+ accesses|cannot be opened)", shown.replace("\n", " ")), shown
    assert "Traceback" not in shown


def test_a_limit_ends_a_generation(experiment, tmp_path):
    experiment.write_text("limit = 321\n" + experiment.read_text())
    assert "│ 321" in invoke("generate", experiment, tmp_path / "trace.arrow")
    assert sum(batch.num_rows for batch in read(tmp_path / "trace.arrow")) == 321


def test_a_configuration_of_gadget_is_an_experiment(tmp_path):
    prefix = "first.event.generator"
    gap = (
        f"{prefix}.event.occurrence.gap.distrib.type = constant\n{prefix}.event.occurrence.gap.distrib.params.constant = 1\n"
    )
    (tmp_path / "config.txt").write_text(
        f"{prefix}.type = gadget\n{prefix}.key.popularity.distrib.type = constant\n{gap}"
        "operator.type = continuous.aggregation\nexpected.num.operations = 500\n"
    )
    assert "500" in invoke("run", tmp_path / "config.txt")


def test_a_log_of_gadget_is_analysed(tmp_path):
    (tmp_path / "gadget.log").write_text("1 get 4 000 g f\n2 put 4 000 g f\n")
    assert "0.500" in invoke("analyse", tmp_path / "gadget.log")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "{dir}/none.toml", "{dir}/out"), "cannot be read: No such file"),
        (("generate", "{experiment}", "{experiment}"), "exists already"),
        (("analyse", "{dir}/none.arrow"), "there is no trace"),
        (("analyse", "{experiment}"), "not an Arrow file"),
        (("ycsb", "g"), "there is no core workload 'g'; there are a, b, c, d, e, f"),
        (("ycsb", "a", "--requests", "zipf"), "requests is 'zipf'"),
        (("ycsb", "a", "--out", "{experiment}"), "exists already"),
        (("run", "{experiment}", "--store", "berkeley"), "there is no store 'berkeley'"),
        (("run", "{experiment}", "--directory", "{dir}/none"), "stores cannot work in .*none: No such file"),
        (("run", "{experiment}", "--beside", "{dir}/none.toml"), "cannot be read: No such file"),
        (("run", "{experiment}", "--beside", "{experiment}", "--batched"), "leave out --trace, --batched and --vnode"),
        (("run", "{experiment}", "--beside", "{experiment}", "--out", "{experiment}"), "exists already"),
        (("run", "{experiment}", "--out", "{dir}/out.csv"), "name a second experiment"),
        (("run", "{experiment}", "--beside", "{experiment}", "--out", "{dir}/no/out.csv"), "there is no directory .*no for"),
        (("generate", "{experiment}", "{dir}/no/trace.arrow"), "there is no directory .*no for"),
        (("compare", "{experiment}", "--directory", "{dir}/none", "--out", "{dir}/r"), "stores cannot work in .*none: No"),
        (("run", "{experiment}", "--store", "forebay-rmw", "--trace", "{dir}/none.arrow"), "there is no trace"),
    ],
)
def test_bad_arguments(experiment, tmp_path, arguments, message):
    with pytest.raises(ForebayError, match=message):
        invoke(*(each.format(dir=tmp_path, experiment=experiment) for each in arguments))


def test_an_interrupted_rehearsal_leaves_what_was_measured(experiment, monkeypatch):
    monkeypatch.setattr(comparison, "rehearse", lambda name, *_: name == "sqlite")
    result = CliRunner().invoke(app.app, ["harness", "run", str(experiment)])
    assert result.exit_code == terminal.INTERRUPTED
    assert "accesses/s" in result.output
    assert "sqlite" not in result.output


def test_a_rate_does_not_go_with_all(experiment, tmp_path):
    (tmp_path / "slow.toml").write_text("rate = 10\n" + experiment.read_text())
    with pytest.raises(InvalidArgument, match=r"slow\.toml has a rate, take it out"):
        invoke("run", tmp_path / "slow.toml", "--batched")
    with pytest.raises(InvalidArgument, match=r"experiment\.toml says None, .*slow\.toml says 10"):
        invoke("run", experiment, "--beside", tmp_path / "slow.toml")


def test_an_error_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "experiment.toml").write_text('workload = "agregation"\n')
    done = subprocess.run([*PROGRAM, "run", str(tmp_path / "experiment.toml")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "experiment.toml:1: workload is 'agregation'" in line


def test_memory_must_suffice(experiment):
    experiment.write_text(experiment.read_text().replace("stores", "memory_mb = 0\nstores"))
    with pytest.raises(InvalidArgument, match="memory_mb is 0"):
        invoke("run", experiment)


@pytest.mark.thorough
def test_an_interrupted_generation_leaves_a_trace(experiment, tmp_path):
    experiment.write_text(experiment.read_text().replace("5000", "5_000_000_000"))
    out = tmp_path / "trace.arrow"
    running = subprocess.Popen([*PROGRAM, "generate", str(experiment), str(out)], stdout=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and not (out.exists() and out.stat().st_size > 1 << 20):
            time.sleep(0.05)
        for _ in range(4):  # Python may lose one, if it comes while C code calls back: who waits presses again
            os.kill(running.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = running.communicate(timeout=20)
                break
    finally:
        running.kill()
    assert running.returncode == 130
    assert "accesses/s" in output
    assert sum(batch.num_rows for batch in read(out)) > 10_000
