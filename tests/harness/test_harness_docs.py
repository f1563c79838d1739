"""What docs/harness.md shows runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.harness.experiment import Experiment
from forebay.harness.operators import WORKLOADS

PAGE = (Path(__file__).parents[2] / "docs" / "harness.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_experiment_can_be_read(tmp_path):
    whole, source, _ = blocks("toml")
    (tmp_path / "experiment.toml").write_text(whole)
    assert Experiment.read(tmp_path / "experiment.toml").workload == "session-holistic"
    (tmp_path / "experiment.toml").write_text('workload = "aggregation"\n' + source)
    Experiment.read(tmp_path / "experiment.toml")


def test_the_examples_run(capsys):
    names: dict = {}
    for block in blocks("python"):
        exec(block, names)
    assert int(capsys.readouterr().out.split()[0]) > 10_000
    assert names["TestUppercase"]().open(None, 0).get(b"k") is None


@pytest.mark.thorough
@pytest.mark.programs
def test_the_operator_of_ones_own_is_driven(tmp_path, monkeypatch):
    operator = next(block for block in blocks("python") if "EveryTenth" in block)
    (tmp_path / "every_tenth.py").write_text(operator.partition("\n\ndriver =")[0])
    (tmp_path / "experiment.toml").write_text(blocks("toml")[2])
    experiments = tmp_path / "experiment.toml"
    monkeypatch.chdir(tmp_path)
    program = [sys.executable, "-c", "from forebay.cli.app import main; main()", "harness"]
    for settings in (["run", "--store", "dict"], ["compare", "--stores", "dict", "--limit", "500"]):
        done = subprocess.run([*program, *settings, str(experiments)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "every_tenth:EveryTenth" in (tmp_path / "forebay-comparison" / "runs.csv").read_text()


def test_every_workload_and_setting_is_named():
    from forebay.harness.experiment import ARRIVALS, KEYS, SIZES
    from forebay.harness.stores import STORES

    for name in (*WORKLOADS, *STORES, *ARRIVALS, *KEYS, *SIZES):
        assert f"`{name}`" in PAGE, name
