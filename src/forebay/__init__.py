"""forebay: a semantic-aware state store for PySpark Structured Streaming."""

from forebay.aggregates.functions import (
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
from forebay.spark.explain import explain
from forebay.spark.groupby import groupBy
from forebay.spark.progress import Progress, progress
from forebay.spark.timewindows import window

__version__ = "0.1.0"

__all__ = [
    "ForebayError",
    "Progress",
    "apply",
    "approx_count_distinct",
    "avg",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "explain",
    "first",
    "groupBy",
    "last",
    "max",
    "max_by",
    "mean",
    "median",
    "min",
    "min_by",
    "mode",
    "percentile",
    "progress",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
    "window",
]
