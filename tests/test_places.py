"""Where state lives on a node that others use, too."""

import os

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
        place.root(None, "query")
    if how == "others can write":
        node.chmod(0o775)
        assert place.root(None, "query").directory == node / "query"


@pytest.mark.parametrize("above", [".", "not/there/yet"])
def test_a_directory_of_a_node_is_private(tmp_path, above):
    root = Place(local_directory=str(tmp_path / above), durability="local").root(None, "query")
    assert root.directory.parent.exists() == (above == ".")
    root.safe.write("layout/file", b"safe")
    assert root.directory.parent.stat().st_mode & 0o777 == 0o700
