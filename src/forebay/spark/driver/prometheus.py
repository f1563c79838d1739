"""Metrics of all queries of a driver for Prometheus, at ``http://<driver>:<spark.forebay.prometheusPort>/metrics``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from forebay.errors import UnsupportedConfiguration
from forebay.spark.driver import metrics
from forebay.spark.driver.tally import SIZES, UNITS

_served: set[int] = set()


class _Operators(Collector):
    def collect(self) -> Iterator[Metric]:
        totals = metrics.totals()
        for kind, described in ((CounterMetricFamily, UNITS), (GaugeMetricFamily, SIZES)):
            for name, text in described.items():
                family = kind(f"forebay_{_snake(name)}", text, labels=["query", "operator"])
                for labels, values in totals.items():
                    family.add_metric(labels, values.get(name, 0))
                yield family


def serve(port: int) -> None:
    """Answer requests at a port, from now on; `UnsupportedConfiguration` if it cannot be had."""
    if port in _served:
        return
    registry = CollectorRegistry()
    registry.register(_Operators())
    try:
        start_http_server(port, registry=registry)
    except OSError as error:
        raise UnsupportedConfiguration(
            f"spark.forebay.prometheusPort is {port}, which this driver cannot listen on: {error}. Set another port."
        ) from error
    _served.add(port)


def _snake(name: str) -> str:
    """``commitTimeMs`` as ``commit_time_ms``."""
    return re.sub("([A-Z])", lambda letter: f"_{letter[1].lower()}", name)
