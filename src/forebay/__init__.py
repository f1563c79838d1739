"""forebay: a semantic-aware state store for PySpark Structured Streaming.

Public are the names that are exported here, and `forebay.errors`, `forebay.harness`, `forebay.nexmark`,
`forebay.store.listing` and `forebay.testing`. All other modules are internal and may change with any release.
"""

from forebay.aggregates.functions import (
    all_max_by,
    apply,
    approx_count_distinct,
    avg,
    bool_and,
    bool_or,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,
    max_by,
    mean,
    median,
    min,
    min_by,
    mode,
    percentile,
    stddev,
    stddev_pop,
    stddev_samp,
    sum,
    var_pop,
    var_samp,
    variance,
)
from forebay.errors import ForebayError
from forebay.spark.driver.continuous_join import continuousJoin
from forebay.spark.driver.dedupe import dedupe
from forebay.spark.driver.explain import explain
from forebay.spark.driver.groupby import groupBy, rolling
from forebay.spark.driver.handover import Handed, Handover, Placed, handover
from forebay.spark.driver.interval_join import intervalJoin
from forebay.spark.driver.late import late
from forebay.spark.driver.metrics import MetricsListener, recentMetrics
from forebay.spark.driver.progress import Progress, progress
from forebay.spark.driver.rescale import rescale
from forebay.spark.driver.shared import patterns
from forebay.spark.driver.state_source import registerStateSource
from forebay.spark.driver.window_join import join
from forebay.spark.driver.windows import (
    count_window,
    custom_window,
    every,
    every_rows,
    global_window,
    session_window,
    window,
)

__version__ = "0.1.0"

__all__ = [
    "ForebayError",
    "Handed",
    "Handover",
    "MetricsListener",
    "Placed",
    "Progress",
    "all_max_by",
    "apply",
    "approx_count_distinct",
    "avg",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "continuousJoin",
    "count",
    "count_distinct",
    "count_window",
    "custom_window",
    "dedupe",
    "every",
    "every_rows",
    "explain",
    "first",
    "global_window",
    "groupBy",
    "handover",
    "intervalJoin",
    "join",
    "last",
    "late",
    "max",
    "max_by",
    "mean",
    "median",
    "min",
    "min_by",
    "mode",
    "patterns",
    "percentile",
    "progress",
    "recentMetrics",
    "registerStateSource",
    "rescale",
    "rolling",
    "session_window",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
    "window",
]
