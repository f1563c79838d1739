"""After ``forebay warmup`` operators have nothing left to compile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forebay

LISTED = """
import forebay.engine.open
from forebay import compiling
print(*compiling.kernels)
"""

QUERIES = """
import tempfile
from pathlib import Path
from forebay.engine.plan import END_OF_TIME
from test_golden import PLANS, run
with tempfile.TemporaryDirectory() as directory:
    for name, plan in PLANS.items():
        _, version = run(plan, Path(directory, name), None, [0, 1], 35)
        run(plan, Path(directory, name), version, [2, 3], END_OF_TIME)
"""


WITHOUT_ROWS = """
from pathlib import Path
from typer.testing import CliRunner
import forebay.engine.rehearsal
from forebay.cli.app import app
from forebay.spark.driver import shared_classes
shared_classes.make = Path  # which takes as long
forebay.engine.rehearsal.rehearse = lambda directory: iter(())  # which takes a minute where nothing is kept
result = CliRunner().invoke(app, ["warmup"])
print(result.exit_code, result.output)
"""

ELSEWHERE = {
    *(
        "index_kernels.find",
        "index_kernels.find_each",
        "index_kernels.find_exact",
        "row_kernels.chained",
    ),
    "step_kernels.place_in_steps",
}
"""Loops of the stores' own interface and of captures, which no operator needs."""


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """An environment in which `forebay warmup` has run, and what it printed."""
    directory = tmp_path_factory.mktemp("compiled")
    source = Path(forebay.__file__).parents[1]
    paths = os.pathsep.join(map(str, (source, Path(__file__).parent)))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(directory), "PYTHONPATH": paths}
    program = "import sys; sys.argv = ['forebay', 'warmup']; from forebay.cli.app import main; main()"
    return environment, directory, python(environment, program)


def python(environment, program):
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def compiled(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*.nb[ci]")}


@pytest.mark.slow
def test_all_loops_of_operators_are_compiled(warm):
    environment, directory, printed = warm
    kept = {path.name.partition("-")[0] for path in compiled(directory)}
    names = {".".join(name.split(".")[-2:]) for name in python(environment, LISTED).split()}
    assert len(names) > 40
    assert names - kept == ELSEWHERE
    assert str(directory) in printed


@pytest.mark.slow
def test_operators_compile_nothing_more(warm):
    environment, directory, _ = warm
    before = compiled(directory)
    python(environment, QUERIES)
    assert compiled(directory) == before


@pytest.mark.thorough
def test_it_says_so_where_nothing_can_be_kept(read_only, tmp_path):
    (tmp_path / f"forebay-compiled-{os.getuid()}").write_text("")  # a file, where a directory is wanted
    printed = python(read_only, WITHOUT_ROWS)
    assert printed.startswith("2 "), printed
    assert "error: nowhere can compiled code be kept" in printed
