"""forebay can be imported, and compiles its loops, wherever what is compiled can be kept."""

import os
import subprocess
import sys

import pytest

from forebay import compiling

PLACED = """
import numpy as np
from forebay.aggregates import sorting
from forebay.store.key_index import KeyIndex
keys = np.arange(3)
print(len(KeyIndex().place_exact(keys, keys, keys, keys + 1)))
"""


def run(environment):
    ended = subprocess.run([sys.executable, "-c", PLACED], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "3\n"), ended.stderr


@pytest.mark.thorough
def test_in_a_directory_of_the_user_alone(read_only, tmp_path):
    run(read_only)
    (kept,) = tmp_path.glob("forebay-compiled-*")
    assert kept.stat().st_mode & 0o777 == 0o700
    assert any(kept.rglob("index_kernels.place_exact*.nbi"))


@pytest.mark.thorough
def test_nothing_is_kept_where_others_may_write(read_only, tmp_path):
    theirs = tmp_path / f"forebay-compiled-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    run(read_only)
    assert not any(theirs.iterdir())


def test_processes_that_compile_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours = "import forebay.compiling as c\nprint('asks', flush=True)\nwith c.in_turn(): print('compiles', flush=True)"
    with compiling.in_turn():
        other = subprocess.Popen(
            [sys.executable, "-c", ours], env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout.readline() == "asks\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
    assert other.communicate(timeout=60)[0] == "compiles\n"


@pytest.mark.thorough
def test_a_daemon_loads_where_what_is_kept_is_damaged(tmp_path):
    """The tasks that need it fail; those of others, which it forks too, need not."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    loads = [sys.executable, "-c", "from forebay.spark.worker import startup; startup.load_all()"]
    subprocess.run(loads, env=environment, check=True)
    kept = list(tmp_path.rglob("compiling._nothing*.nbi"))
    assert len(kept) == 1
    kept[0].write_bytes(b"")
    broken = "from forebay import compiling; compiling.prepare()"
    assert subprocess.run([sys.executable, "-c", broken], env=environment, capture_output=True, check=False).returncode
    subprocess.run(loads, env=environment, check=True)
