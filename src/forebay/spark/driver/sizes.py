"""Sizes of the virtual nodes of a query that goes on: tasks only tell of those that have something to do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from forebay.spark.driver import metrics
from forebay.state import instances
from forebay.state.places import Root
from forebay.store.archive import Archive
from forebay.store.manifest import EVENTS

_log = logging.getLogger("forebay")


def learn(query: str, root: Root, operators: Collection[str]) -> None:
    """Have the sizes of all virtual nodes read from their manifests, in the background, and put into the query's metrics.

    Parameters
    ----------
    query : str
        The query's id.
    root : Root
        Where its state is.
    operators : collection of str
        The directories of its operators there.
    """
    if operators:
        threading.Thread(target=_learn, args=(query, root, operators), name="forebay sizes", daemon=True).start()


def _learn(query: str, root: Root, operators: Collection[str]) -> None:
    for operator in operators:
        try:
            metrics.complete(query, operator, _read(root.within(operator).safe))
        except Exception as error:  # of any file system; the query goes on without
            _log.info("the sizes of virtual nodes that have nothing to do are not known: %s", error)


def _read(operator: Archive) -> dict[int, dict[str, float]]:
    """Sizes of virtual nodes, as their tasks would tell them that have nothing in memory yet."""
    return {
        vnode: {
            "stateBytes": sum(segment.size for segment in manifest.segments.values()),
            "stateLiveBytes": manifest.size,
            "storedEvents": manifest.rows_of(EVENTS),
            "memoryBytes": 0,
        }
        for vnode, manifest in instances.newest(operator)
    }
