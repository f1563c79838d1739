"""Settings under ``spark.forebay`` that there are not, such as misspelt ones: a session is warned of them."""

from __future__ import annotations

import difflib
import logging

from pyspark.sql import SparkSession

from forebay.spark.properties import INTERNAL, PREFIX

_log = logging.getLogger("forebay")

SETTINGS = (
    "agentPort",
    "captureTrace",
    "chainedTimers",
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

_warned: set[str] = set()
"""The names that have been warned of, in whatever session: each micro-batch of ``foreachBatch`` has one of its own."""


def warn_of_unknown(session: SparkSession) -> None:
    """A warning of each name under our prefix that is no setting, once."""
    set_ = {name for name in session.conf.getAll if name.startswith(PREFIX) and not name.startswith(INTERNAL)}
    for name in sorted(set_ - {PREFIX + setting for setting in SETTINGS} - _warned):
        _warned.add(name)
        nearest = _nearest(name.removeprefix(PREFIX))
        advice = f"Did you mean {PREFIX}{nearest}?" if nearest else f"The settings are {', '.join(SETTINGS)}."
        _log.warning("%s is no setting of forebay, so it has no effect. %s", name, advice)


def _nearest(name: str) -> str | None:
    """The setting that is spelled most like a name, if one is."""
    spelled = {setting.lower(): setting for setting in SETTINGS}
    return next((spelled[found] for found in difflib.get_close_matches(name.lower(), spelled, 1)), None)
