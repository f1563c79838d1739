"""The benchmarks name things of the library that exist; what they measure is not looked at here."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_they_can_be_imported(name):
    program = f"import sys; sys.path[:0] = [{str(BENCHMARKS)!r}, {str(BENCHMARKS / 'peers')!r}]; import {name}"
    subprocess.run([sys.executable, "-c", program], check=True)
