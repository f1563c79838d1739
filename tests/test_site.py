"""What processes that Spark starts import pyspark from."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from forebay.spark.worker import site
from forebay.spark.worker.site.sitecustomize import is_copy

PACKAGE = Path(pyspark.__file__).parent
ZIPS = [str(path) for path in (PACKAGE / "python" / "lib").glob("*.zip")]
OURS = str(Path(site.__file__).parent)

pytestmark = pytest.mark.skipif(len(ZIPS) != 2, reason="pip has not installed this pyspark")


def shown(program, *path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert not run.stderr
    return run.stdout.split()


def test_pyspark_comes_from_its_files_and_all_else_of_the_path_stays(tmp_path):
    program = "import pyspark, py4j, sys; print(pyspark.__file__, py4j.__file__, *sys.path)"
    before, after = shown(program, *ZIPS, tmp_path), shown(program, *ZIPS, OURS, tmp_path)
    assert before[0].startswith(ZIPS[0]) or before[0].startswith(ZIPS[1])
    assert after[0] == pyspark.__file__ and ".zip" not in after[1]
    assert after[2:] == [entry for entry in before[2:] if entry not in ZIPS]


def test_another_sitecustomize_runs_as_if_there_were_no_other(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("MADE = 'theirs'\n")
    program = "import sys, sitecustomize; print(sitecustomize.MADE, sitecustomize.__file__, *sys.path)"
    theirs = shown(program, *ZIPS, tmp_path)
    assert theirs[:2] == ["theirs", str(tmp_path / "sitecustomize.py")]
    assert shown(program, *ZIPS, OURS, tmp_path) == [entry for entry in theirs if entry not in ZIPS]


def test_an_error_of_another_sitecustomize_is_told_as_python_tells_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    path = os.pathsep.join([*ZIPS, OURS, str(tmp_path)])
    run = subprocess.run([sys.executable, "-c", ""], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert run.returncode == 0 and "No module named 'no_such_module'" in run.stderr


def test_a_zip_that_is_not_pips_stays(tmp_path):
    lib = tmp_path / "pyspark" / "python" / "lib"
    path = [str(tmp_path), *(str(lib / name) for name in ("pyspark.zip", "py4j-1.0-src.zip"))]
    assert [is_copy(entry, path) for entry in path] == [False, False, False]  # there are no files beside it
    lib.mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "py4j-1.1.dist-info").mkdir()
    assert [is_copy(entry, path) for entry in path] == [False, True, False]  # py4j is of another version
    (tmp_path / "py4j-1.0.dist-info").mkdir()
    assert [is_copy(entry, path) for entry in path] == [False, True, True]
    assert not any(is_copy(entry, path[1:]) for entry in path)  # the path does not lead to those files
    (tmp_path / "link").symlink_to(tmp_path)
    assert all(is_copy(entry, [str(tmp_path / "link")]) for entry in path[1:])
    spark = str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip")
    assert not is_copy(spark, [spark, str(tmp_path / "spark")])
