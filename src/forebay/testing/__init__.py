"""Contracts as tests: what every store and every archive must do. Public; they need pytest.

A test module subclasses `StoreTests` or `ArchiveTests` under a name that begins with ``Test``, and says how its store or its
archive is opened. Stores and archives of forebay pass them, and so must those of others.
"""

from forebay.testing.archives import ArchiveTests
from forebay.testing.stores import StoreTests

__all__ = ["ArchiveTests", "StoreTests"]
