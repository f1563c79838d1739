"""Where state lives on a node that others use, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.errors import StateDirectoryError
from forebay.state.places import Place


@pytest.mark.parametrize("how", ["others can write", "a link", "a file"])
def test_a_directory_that_others_can_have_put_something_into_is_refused(tmp_path, how):
    node = tmp_path / f"forebay-only-{os.getuid()}"
    if how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        node.symlink_to(tmp_path / "elsewhere")
    elif how == "a file":
        node.touch(mode=0o600)
    else:
        node.mkdir()
        node.chmod(0o777)
    place = Place(local_directory=str(tmp_path), durability="local")
    with pytest.raises(StateDirectoryError, match="others cannot write"):
        place.root("file:/ck", "query")
    if how == "others can write":
        node.chmod(0o775)
        assert place.root("file:/ck", "query").directory == node / "query"


@pytest.mark.parametrize("above", [".", "not/there/yet"])
def test_a_directory_of_a_node_is_private(tmp_path, above):
    root = Place(local_directory=str(tmp_path / above), durability="local").root("file:/ck", "query")
    assert root.directory.parent.exists() == (above == ".")
    root.safe.write("layout/file", b"safe")
    assert root.directory.parent.stat().st_mode & 0o777 == 0o700


def test_what_a_killed_task_left_is_removed_by_the_next(tmp_path):
    """Those at work are left alone, in this process as in others."""
    place = Place(local_directory=str(tmp_path))
    program = """
import sys, time
from forebay.state.places import Place
with Place(local_directory=sys.argv[1]).scratch() as directory:
    (directory / "rows").write_bytes(b"x")
    print(directory, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        left = Path(other.stdout.readline().strip())
        with place.scratch() as one, place.scratch() as two:
            assert one != two
            assert one.exists()
            assert (left / "rows").exists()
        assert not one.exists()
        other.kill()
        other.wait()
    with place.scratch():
        assert not left.exists()
