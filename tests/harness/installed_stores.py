"""Which stores are installed: those that need what PyPI does not bring may be missing."""

import tempfile
from functools import cache
from pathlib import Path

import pytest

from forebay.errors import InvalidArgument
from forebay.harness.stores import open_store

OUTSIDE = ("berkeleydb", "redis")


@cache
def lacks(name):
    """Why a store cannot be opened here, or None."""
    if name not in OUTSIDE:
        return None
    with tempfile.TemporaryDirectory() as directory:
        try:
            open_store(name, Path(directory)).close()
        except InvalidArgument as error:
            return str(error)
    return None


def require(name):
    if reason := lacks(name):
        pytest.skip(reason)
