"""What the driver last wrote of the hosts that keep a query's state, beside that state: ``cluster.json``."""

from __future__ import annotations

import json
from typing import Any

from forebay.errors import ForebayError, InvalidArgument
from forebay.state.places import DIRECTORY, path_of
from forebay.store.archive import Archive, archive_at

STATUS = "cluster.json"
_PARTS = frozenset({"written", "query", "replicas", "hosts", "partitions", "handovers"})


def write(archive: Archive, status: dict[str, Any]) -> None:
    """Keep a status beside the state of a query, in place of the one before."""
    archive.write(STATUS, json.dumps(status, indent=1).encode())


def read(location: str) -> dict[str, Any]:
    """The status that was written last.

    Parameters
    ----------
    location : str
        The checkpoint location of a query, or its state directory: a path or a URL.

    Returns
    -------
    dict
        ``written`` (seconds since 1970), ``query``, ``replicas``, ``hosts``, ``partitions`` and ``handovers``.

    Raises
    ------
    InvalidArgument
        If there is none.
    """
    path = path_of(location)
    root = archive_at(str(path) if path is not None else location)
    for archive in (root.within(DIRECTORY), root):
        try:
            status: dict[str, Any] = json.loads(archive.read(STATUS))
            missing = _PARTS.difference(status) if isinstance(status, dict) else _PARTS
            if missing:
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            return status
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (ForebayError, OSError, ValueError) as error:
            raise InvalidArgument(f"the status of the hosts at {location} cannot be read: {error}") from error
    raise InvalidArgument(
        f"nothing is known of hosts that keep the state at {location}. It is written while a query runs with "
        "spark.forebay.durability=replicas; name the checkpoint location of such a query."
    )
