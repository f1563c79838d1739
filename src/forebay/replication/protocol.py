"""How agents, tasks and the manager talk: actions of Arrow Flight with JSON in them, authenticated by a secret."""

from __future__ import annotations

import contextlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from forebay import errors
from forebay.errors import ForebayError, ReplicationError

CALL_SECONDS = 10.0
"""A call that is not answered for so long has failed."""

Action = Callable[..., dict[str, Any] | None]

AVOIDED_SECONDS = 15.0
"""A host that did not take a version is not sent another one for so long."""

_AUTHORIZATION = "authorization"


class Service(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """A server of named actions.

    Parameters
    ----------
    host : str
        The address to listen on, a host's own one.
    port : int
        The port; 0 for any that is free.
    secret : str
        What callers must know.
    """

    def __init__(self, host: str, port: int, secret: str) -> None:
        try:
            super().__init__(f"grpc://{_bracketed(host)}:{port}", middleware={"secret": _Secrets(secret)})
        except (pa.ArrowException, OSError) as error:
            raise ReplicationError(
                f"no agent can listen on port {port} of {host}: {error}. Another process may have that port, an agent of "
                "another application for one, or of a driver that was killed less than a minute ago: set "
                "spark.forebay.agentPort to another port, or to 0 for any free one."
            ) from error
        self.address = f"{_bracketed(host)}:{self.port}"
        self.actions: dict[str, Action] = {}

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[pa.Buffer]:
        del context
        try:
            called = self.actions.get(action.type)
            if called is None:
                raise ReplicationError(
                    f"{action.type!r} is no action of this service; are all hosts on one forebay release?"
                )
            reply = called(**json.loads(action.body.to_pybytes()) or {}) or {}
        except ForebayError as error:
            reply = {"error": [type(error).__name__, str(error)]}
        yield pa.py_buffer(json.dumps(reply).encode())


class Peer:
    """Another agent, or the manager, that this process calls. It may be called by several threads.

    Parameters
    ----------
    address : str
        ``host:port``.
    secret : str
        What the other side wants to hear.
    """

    def __init__(self, address: str, secret: str) -> None:
        self.address = address
        self._headers = [(_AUTHORIZATION.encode(), f"Bearer {secret}".encode())]
        self.client = flight.connect(f"grpc://{address}", generic_options=[("grpc.max_reconnect_backoff_ms", 1000)])

    def call(self, action: str, *, seconds: float = CALL_SECONDS, **arguments: Any) -> dict[str, Any]:
        """The reply to an action; errors of ours are raised here as they were there.

        Raises
        ------
        ReplicationError
            If the other side cannot be reached, does not answer in time, or refuses the secret.
        """
        with self.failing():
            results = self.client.do_action(flight.Action(action, json.dumps(arguments).encode()), self.options(seconds))
            reply: dict[str, Any] = json.loads(next(iter(results)).body.to_pybytes())
        if "error" in reply:
            kind, message = reply["error"]
            raise getattr(errors, kind, ReplicationError)(message)
        return reply

    def options(self, seconds: float) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Turn what Flight raises inside the block into a `ReplicationError` that names the other side."""
        try:
            yield
        except errors.ForebayError:  # what this side says is no fault of the other one, as that its own disk is full
            raise
        except flight.FlightUnauthenticatedError as error:
            raise ReplicationError(
                f"the forebay service at {self.address} does not accept the secret of this application. It belongs to "
                "another one; if ports are fixed (spark.forebay.agentPort), give each application its own."
            ) from error
        except (pa.ArrowException, OSError, StopIteration, ValueError) as error:
            reason = str(error).partition(". gRPC client debug context")[0]
            raise ReplicationError(f"the forebay service at {self.address} did not answer: {reason}") from error

    def close(self) -> None:
        with contextlib.suppress(pa.ArrowException):
            self.client.close()


class Peers:
    """Connections by address, made when they are first used."""

    def __init__(self, secret: str) -> None:
        self._secret, self._peers, self._lock = secret, dict[str, Peer](), threading.Lock()

    def __getitem__(self, address: str) -> Peer:
        with self._lock:
            if address not in self._peers:
                self._peers[address] = Peer(address, self._secret)
            return self._peers[address]

    def forget(self, address: str) -> None:
        """Let go of a connection; the next use makes another one."""
        with self._lock:
            self._peers.pop(address, None)


class _Secrets(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, secret: str) -> None:
        super().__init__()
        self._wanted = f"Bearer {secret}"

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> None:
        del info
        given = next((values[0] for name, values in headers.items() if name.lower() == _AUTHORIZATION and values), "")
        if not hmac.compare_digest(given, self._wanted):
            raise flight.FlightUnauthenticatedError("the secret is wrong")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
