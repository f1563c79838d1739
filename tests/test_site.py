"""What processes that Spark starts import pyspark from."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from forebay.spark.worker import site
from forebay.spark.worker.site.sitecustomize import without_copy

LIB = Path(pyspark.__file__).parent / "python" / "lib"
ZIPS = [str(LIB / "pyspark.zip"), *map(str, LIB.glob("py4j*.zip"))]
OURS = str(Path(site.__file__).parent)

pytestmark = pytest.mark.skipif(not (LIB / "pyspark.zip").exists(), reason="pip has not installed this pyspark")


def shown(program, *path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert not run.stderr
    return run.stdout.split()


FOUND = "import pyspark, sys; print(pyspark.__file__, *sys.path)"


def test_pyspark_comes_from_its_files_and_all_else_of_the_path_stays(tmp_path):
    before, after = shown(FOUND, *ZIPS, tmp_path), shown(FOUND, *ZIPS, OURS, tmp_path)
    assert before[0].startswith(ZIPS[0])
    assert after == [pyspark.__file__, *(entry for entry in before[1:] if entry != ZIPS[0])]


def test_the_files_may_be_found_by_a_link(tmp_path):
    (tmp_path / "link").symlink_to(LIB.parents[2])
    assert shown(FOUND, *ZIPS, OURS, tmp_path / "link")[0] == str(tmp_path / "link" / "pyspark" / "__init__.py")


def test_the_zip_stays_where_another_pyspark_would_be_found(tmp_path):
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    assert shown(FOUND, *ZIPS, OURS, tmp_path)[0].startswith(ZIPS[0])


def test_the_zip_stays_where_no_pyspark_would_be_found(tmp_path):
    path = [*ZIPS, str(tmp_path)]
    assert without_copy(path) == path


def test_another_sitecustomize_runs_as_if_there_were_no_other(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("MADE = 'theirs'\n")
    program = "import sys, sitecustomize; print(sitecustomize.MADE, sitecustomize.__file__, *sys.path)"
    theirs = shown(program, *ZIPS, tmp_path)
    assert theirs[:2] == ["theirs", str(tmp_path / "sitecustomize.py")]
    assert shown(program, *ZIPS, OURS, tmp_path) == [entry for entry in theirs if entry != ZIPS[0]]


def test_an_error_of_another_sitecustomize_is_told_as_python_tells_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*ZIPS, OURS, str(tmp_path)])}
    run = subprocess.run([sys.executable, "-c", FOUND], capture_output=True, text=True, check=True, env=environment)
    assert "No module named 'no_such_module'" in run.stderr
    assert run.stdout.split()[0] == pyspark.__file__
