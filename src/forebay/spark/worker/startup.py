"""What runs first in a Python worker. Nothing here may import polars: it takes its number of threads when imported."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import sys
from typing import Any

from pyspark import Broadcast, SparkContext, TaskContext, cloudpickle

_SHARE = 4
"""A value becomes a broadcast variable if it is longer than such a part of what Spark still sends with a function, 1 MB."""


class Shipped:
    """A value that a function of Spark's takes along, and that a task loads when it needs it.

    It is pickled while Spark pickles the function, so Spark finds the broadcast variables that users' functions in it have.
    With ``stateful`` it is for a stateful operator, and becomes such a variable itself where it is large. Spark would make
    one of the function, which the worker cannot read that it starts on the driver for such an operator.
    """

    def __init__(self, value: object, *, stateful: bool = False) -> None:
        self._value, self._stateful = value, stateful

    def __getstate__(self) -> bytes:
        data, context = dumps(self._value), SparkContext._active_spark_context
        if self._stateful and context is not None and context._jvm is not None:
            most = context._jvm.PythonUtils.getBroadcastThreshold(context._jsc)
            if len(data) > most // _SHARE:
                return dumps(context.broadcast(data))
        return data

    def __setstate__(self, data: bytes) -> None:
        self._data = data

    def load(self) -> Any:
        """The value, in a worker whose native thread pools are no larger than the task's share of the machine."""
        return loads(self._data)


def dumps(value: object) -> bytes:
    """A value as bytes, a user's functions included, as Spark ships functions."""
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]  # Spark has left out its types


def loads(data: bytes) -> Any:
    """The value again; see `Shipped.load`."""
    import pyarrow as pa

    context = TaskContext.get()
    cpus = context.cpus() if context else 1
    os.environ.setdefault("POLARS_MAX_THREADS", str(cpus))
    pa.set_cpu_count(cpus)
    plan = pickle.loads(data)
    if isinstance(plan, Broadcast):
        plan = pickle.loads(plan.value)
    spare_loaded()
    return plan


def load_all() -> None:
    """Import what tasks of an operator need, before there is one."""
    worker = (f"forebay.spark.worker.{name}" for name in ("operator", "pack", "stateful_processor"))
    for module in ("pandas", "forebay.engine.open", *worker):
        importlib.import_module(module)
    with contextlib.suppress(Exception):  # the tasks that run what is compiled meet it again; others need not
        importlib.import_module("forebay.compiling").prepare()


def spare_loaded() -> None:
    """Spare what this process has loaded from garbage collection.

    Spark's worker collects garbage after every task, and would look through the objects of all loaded modules each time.
    What is spared is never freed if it is part of a cycle, so it is done only when more modules have been loaded.
    """
    global _spared
    if len(sys.modules) != _spared:
        gc.freeze()
        _spared = len(sys.modules)


_spared = 0
"""How many modules were loaded when their objects were spared."""


def local_property(name: str) -> str | None:
    """A property of the query that the running task belongs to."""
    context = TaskContext.get()
    return context.getLocalProperty(name) if context else None
