"""forebay: a semantic-aware state store for PySpark Structured Streaming.

Public are the names that are exported here, and `forebay.errors`, `forebay.harness`, `forebay.nexmark`,
`forebay.store.listing` and `forebay.testing`. All other modules are internal and may change with any release.
"""

import importlib.util
from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay import errors as errors

if TYPE_CHECKING:
    from forebay.api import *  # noqa: F403 - the list is there

__version__ = "0.1.0"


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A public name, loaded when one is first asked for: Spark's Python workers ask for none, and load no driver."""
        private = name.startswith("_") and name != "__all__"
        if name.isidentifier() and not private and importlib.util.find_spec(f"{__name__}.{name}") is None:  # no module
            api = import_module("forebay.api")
            if name in ("__all__", *api.__all__):
                return globals().setdefault(name, getattr(api, name))
            more = import_module("forebay.elsewhere").advice(name)
        else:
            more = ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("forebay.api").__all__})
