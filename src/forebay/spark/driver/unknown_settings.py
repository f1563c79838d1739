"""Settings under ``spark.forebay`` that there are not, such as misspelt ones: a session is warned of them."""

from __future__ import annotations

import difflib
import logging
import weakref

from pyspark.sql import SparkSession

from forebay.spark.properties import INTERNAL, PREFIX

_log = logging.getLogger("forebay")

SETTINGS = (
    "agentPort",
    "captureTrace",
    "copyMBPerSecond",
    "durability",
    "handover",
    "instancesPerPartition",
    "keptMB",
    "localDirectory",
    "maxSpaceAmplification",
    "memoryMB",
    "prometheusPort",
    "readBatchRatio",
    "replicas",
    "retainBatches",
    "stateDirectory",
    "uploadBehind",
    "virtualNodes",
    "writeBufferMB",
)
"""All settings there are, without their prefix."""

_warned: weakref.WeakKeyDictionary[SparkSession, set[str]] = weakref.WeakKeyDictionary()
"""The names of which a session has been warned."""


def warn_of_unknown(session: SparkSession) -> None:
    """A warning of each name under our prefix that is no setting, once for each session."""
    set_ = {name for name in session.conf.getAll if name.startswith(PREFIX) and not name.startswith(INTERNAL)}
    warned = _warned.setdefault(session, set())
    for name in sorted(set_ - {PREFIX + setting for setting in SETTINGS} - warned):
        warned.add(name)
        nearest = _nearest(name.removeprefix(PREFIX))
        advice = f"Did you mean {PREFIX}{nearest}?" if nearest else f"The settings are {', '.join(SETTINGS)}."
        _log.warning("%s is no setting of forebay, so it has no effect. %s", name, advice)


def _nearest(name: str) -> str | None:
    """The setting that is spelled most like a name, if one is."""
    spelled = {setting.lower(): setting for setting in SETTINGS}
    return next((spelled[found] for found in difflib.get_close_matches(name.lower(), spelled, 1)), None)
