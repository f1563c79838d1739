"""The benchmarks name things of the library that exist; what they measure is not looked at here."""

import importlib
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_they_can_be_imported():
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert "race" in names
    program = f"import sys; sys.path[:0] = [{str(BENCHMARKS)!r}, {str(BENCHMARKS / 'peers')!r}]; import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_shared_and_separate_state_give_as_many_results(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    stores = importlib.import_module("shared_stores")
    size = stores.Size(files=4, events=300, minutes=5, cards=20)
    stores.generate(tmp_path, size)
    found = [stores.measured(tmp_path / "parquet", size, stores.asked(4), state) for state in ("shared", "separate")]
    assert found[0]["results"] == found[1]["results"] > 100
