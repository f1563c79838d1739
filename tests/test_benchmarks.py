"""The benchmarks name things of the library that exist; what they measure is not looked at here."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_they_can_be_imported():
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert "race" in names
    program = f"import sys; sys.path[:0] = [{str(BENCHMARKS)!r}, {str(BENCHMARKS / 'peers')!r}]; import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", program], check=True)
