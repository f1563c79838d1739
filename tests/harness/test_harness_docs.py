"""What docs/harness.md shows runs."""

import re
from pathlib import Path

from forebay.harness.experiment import Experiment
from forebay.harness.operators import WORKLOADS

PAGE = (Path(__file__).parents[2] / "docs" / "harness.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_experiment_can_be_read(tmp_path):
    whole, source = blocks("toml")
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


def test_every_workload_and_setting_is_named():
    from forebay.harness.experiment import ARRIVALS, KEYS, SIZES
    from forebay.harness.stores import STORES

    for name in (*WORKLOADS, *STORES, *ARRIVALS, *KEYS, *SIZES):
        assert f"`{name}`" in PAGE, name
