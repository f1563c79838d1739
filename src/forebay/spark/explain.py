"""``fb.explain``: which store serves each operator of a DataFrame, and why."""

from __future__ import annotations

from pyspark.sql import DataFrame

from forebay.spark import checkpoint


def explain(df: DataFrame) -> None:
    """Print the forebay operators in a DataFrame's plan: window, keys, aggregates, and the store pattern with the reason.

    Parameters
    ----------
    df : DataFrame
        A result of ``fb.groupBy(...).agg(...)``, or any DataFrame made from such results.

    Examples
    --------
    >>> import forebay as fb
    >>> ticks = spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
    >>> fb.explain(fb.groupBy(ticks, fb.window("timestamp", "1 minute")).agg(fb.count("*"), fb.max("value")))
    == forebay ==
    window(timestamp, 60 s, every 60 s, from 0 s)
      keys        none
      aggregates  count(*), max(value)
      pattern     RMW, read-modify-write
      because     every aggregate has a small intermediate state that rows are merged into
      instances   2 per state partition
    """
    operators = checkpoint.operators(df._jdf.queryExecution().logical().toString())
    lines = ["== forebay =="]
    for operator in operators:
        layout, choice = operator.layout, operator.choice
        lines += [
            layout["window"],
            f"  keys        {', '.join(layout['keys']) or 'none'}",
            f"  aggregates  {', '.join(layout['aggregates'])}",
            f"  pattern     {choice.pattern.name}, {choice.pattern.value}",
            f"  because     {choice.reason}",
            f"  instances   {layout['instancesPerPartition']} per state partition",
        ]
    print("\n".join(lines if operators else [*lines, "no operator of forebay in this plan"]))
