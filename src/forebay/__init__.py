"""forebay: a semantic-aware state store for PySpark Structured Streaming."""

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
from forebay.spark.continuous_join import continuous_join
from forebay.spark.dedupe import dedupe
from forebay.spark.explain import explain
from forebay.spark.groupby import groupBy, rolling
from forebay.spark.interval_join import interval_join
from forebay.spark.join import join
from forebay.spark.late import late
from forebay.spark.metrics import MetricsListener, recent_metrics
from forebay.spark.progress import Progress, progress
from forebay.spark.state_source import register_state_source
from forebay.spark.timewindows import count_window, custom_window, every, every_rows, global_window, session_window, window

__version__ = "0.1.0"

__all__ = [
    "ForebayError",
    "MetricsListener",
    "Progress",
    "all_max_by",
    "apply",
    "approx_count_distinct",
    "avg",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "continuous_join",
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
    "interval_join",
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
    "percentile",
    "progress",
    "recent_metrics",
    "register_state_source",
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
