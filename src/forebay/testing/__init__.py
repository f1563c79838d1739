"""Contracts as tests: what every store, archive and connector must do. Public; they need pytest.

A test module subclasses `StoreTests`, `ArchiveTests` or `ConnectorTests` under a name that begins with ``Test``, and says
how what it tests is opened. Those of forebay pass them, and so must those of others.
"""

from forebay.testing.archives import ArchiveTests
from forebay.testing.connectors import ConnectorTests
from forebay.testing.stores import StoreTests

__all__ = ["ArchiveTests", "ConnectorTests", "StoreTests"]
