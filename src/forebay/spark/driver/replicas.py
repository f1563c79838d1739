"""The replication manager of this driver: started with the first query that wants replicas, ended with the application."""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql import SparkSession

from forebay.errors import UnsupportedConfiguration
from forebay.replication.application import Application
from forebay.spark.driver.conf import Conf
from forebay.spark.worker.vnodes import partition_of
from forebay.state.places import Place

if TYPE_CHECKING:
    from forebay.replication.manager import Manager

ENDING_SECONDS = 120.0
"""Agents may take so long to upload what waits when the application ends."""

_WATCHED_SECONDS = 0.5

_log = logging.getLogger("forebay")

_running: dict[str, tuple[Application, Manager]] = {}
_starting, _ending = threading.Lock(), threading.Lock()


def place_of(session: SparkSession, conf: Conf) -> Place:
    """Where the state of a query lives; if on other hosts, the manager of their replicas runs from now on."""
    if conf.place.durability != "replicas":
        return conf.place
    return replace(conf.place, application=_application(session, conf))


def manager() -> Manager | None:
    """The replication manager of the application, if it has one."""
    context = SparkContext._active_spark_context
    found = _running.get(str(context.applicationId)) if context is not None else None
    return found[1] if found else None


def end() -> None:
    """Have the agents of the application upload what waits, and end, if it has any."""
    for name in list(_running):
        _end(name)


def register(place: Place, checkpoint: str, query: str, partitions: int) -> None:
    """Tell the manager of a query that starts, if its state has replicas."""
    running = manager()
    if running is not None and place.application is not None:
        name, safe = place.held(checkpoint, query)
        archive = safe if place.application.uploading else None
        running.register(name, partial(partition_of, partitions=partitions), archive)


def retire(query: str) -> None:
    """Tell the manager of a query that has ended, if it has replicas."""
    running = manager()
    if running is not None:
        running.retire(query)


def _application(session: SparkSession, conf: Conf) -> Application:
    context = session.sparkContext
    name = str(context.applicationId)
    with _starting:
        if name not in _running:
            _running[name] = _started(context, conf)
            threading.Thread(target=_watch, args=(context, name), name="forebay replicas", daemon=True).start()
            atexit.register(_end, name)
        application, _ = _running[name]
    copying = conf.copy_mb_per_second << 20
    wanted = (conf.replicas, conf.upload_behind, conf.agent_port, copying)
    if wanted != (application.replicas, application.uploading, application.port, application.copying):
        raise UnsupportedConfiguration(
            "spark.forebay.replicas, uploadBehind, agentPort and copyMBPerSecond are those of the whole application, which "
            f"began with {application.replicas}, {str(application.uploading).lower()}, {application.port} and "
            f"{application.copying >> 20}. Set them the same for all of its queries."
        )
    return application


def _started(context: SparkContext, conf: Conf) -> tuple[Application, Manager]:
    from forebay.replication.manager import Manager  # what it imports is for those who want replicas

    secret, name, confs = secrets.token_hex(16), str(context.applicationId), context.getConf()
    host = str(confs.get("spark.driver.host"))
    listening = str(confs.get("spark.driver.bindAddress", host))
    copying = conf.copy_mb_per_second << 20
    made = Manager(listening, secret, conf.replicas, uploading=conf.upload_behind, advertised=host, copying=copying)
    return Application(name, made.address, secret, conf.replicas, conf.upload_behind, conf.agent_port, copying), made


def _watch(context: SparkContext, name: str) -> None:
    """End when Spark has."""
    while name in _running and context._jsc is not None:
        time.sleep(_WATCHED_SECONDS)
    _end(name)


def _end(name: str) -> None:
    with _ending:
        found = _running.pop(name, None)
        if found is not None and not found[1].end(ENDING_SECONDS):
            _log.warning(
                "agents of hosts were lost, or have not ended in %.0f s; what they had not uploaded by then may be missing "
                "in the checkpoint, and is still in their directories.",
                ENDING_SECONDS,
            )
