"""What hosts are called: by their addresses, whatever names they have elsewhere."""

from __future__ import annotations

import os
import socket


def own_address(manager: str) -> str:
    """The address of this host, as the others reach it: Spark's own, or else the one from which the manager is reached."""
    configured = os.environ.get("SPARK_LOCAL_IP", "")
    if configured not in ("", "0.0.0.0", "::"):  # noqa: S104 - that is all addresses, and the name of none
        return address_of(configured)
    host, _, port = manager.rpartition(":")
    kind, _, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def address_of(host: str) -> str:
    """The address of a host that is named by its name or address."""
    try:
        return str(socket.getaddrinfo(host.strip("[]"), None)[0][4][0])
    except OSError:
        return host
