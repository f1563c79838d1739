"""Internal: the public names, which the package `forebay` gives when one of them is first asked for."""

from forebay.aggregates.functions import (
    all_max_by,
    apply,
    approx_count_distinct,
    approx_percentile,
    approx_top_k,
    avg,
    bool_and,
    bool_or,
    collect_list,
    collect_set,
    count,
    count_distinct,
    count_min_sketch,
    current,
    first,
    hll_sketch_agg,
    kll_sketch_agg_bigint,
    kll_sketch_agg_double,
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
    when,
)
from forebay.errors import ForebayError
from forebay.spark.driver.buffer import buffer
from forebay.spark.driver.configure import configure
from forebay.spark.driver.continuous_join import continuousJoin
from forebay.spark.driver.dedupe import dedupe
from forebay.spark.driver.explain import explain
from forebay.spark.driver.groupby import groupBy, rolling
from forebay.spark.driver.handed import Handed, Placed
from forebay.spark.driver.handover import Handover, handover
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
    global_window,
    preceding,
    session_window,
    window,
)

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
    "approx_percentile",
    "approx_top_k",
    "avg",
    "bool_and",
    "bool_or",
    "buffer",
    "collect_list",
    "collect_set",
    "configure",
    "continuousJoin",
    "count",
    "count_distinct",
    "count_min_sketch",
    "count_window",
    "current",
    "custom_window",
    "dedupe",
    "explain",
    "first",
    "global_window",
    "groupBy",
    "handover",
    "hll_sketch_agg",
    "intervalJoin",
    "join",
    "kll_sketch_agg_bigint",
    "kll_sketch_agg_double",
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
    "preceding",
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
    "when",
    "window",
]
