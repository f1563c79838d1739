"""Internal: what to write for names that Spark has and forebay does not."""

from __future__ import annotations

INSTEAD = {
    "any_value": "fb.first",
    "approxCountDistinct": "fb.approx_count_distinct",
    "array_agg": "fb.collect_list",
    "countDistinct": "fb.count_distinct",
    "count_if": "fb.count(F.when(condition, 1))",
    "dropDuplicates": "fb.dedupe",
    "dropDuplicatesWithinWatermark": "fb.dedupe",
    "every": "fb.bool_and",
    "expr": "pyspark's F.expr",
    "first_value": "fb.first",
    "groupby": "fb.groupBy",
    "last_value": "fb.last",
    "listagg": "fb.collect_list, and F.array_join of the result",
    "percentile_approx": "fb.approx_percentile",
    "sessionWindow": "fb.session_window",
    "some": "fb.bool_or",
    "std": "fb.stddev",
    "string_agg": "fb.collect_list, and F.array_join of the result",
    "sum_distinct": "fb.collect_set, and F.aggregate of the result",
    "try_avg": "fb.avg",
    "try_sum": "fb.sum",
}
"""By the name that a user may look for."""


def advice(name: str) -> str:
    """What to write for a name that forebay does not have, as the end of an error message; empty where nobody knows."""
    if name in INSTEAD:
        return f"; write {INSTEAD[name]}"
    from pyspark.sql import functions

    if not hasattr(functions, name):
        return ""
    return f"; F.{name} is Spark's, and makes a Column. For an aggregate that forebay lacks there is fb.apply"
