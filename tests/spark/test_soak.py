"""The soak of ``make soak``, for seconds rather than minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.slow
def test_a_query_that_is_killed_again_and_again_gives_what_spark_gives():
    done = subprocess.run(
        [sys.executable, SOAK, "--minutes", "0.4"], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "killing all" in done.stdout
    assert " 0 missing, 0 too many" in done.stdout
