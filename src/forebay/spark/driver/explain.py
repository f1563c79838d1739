"""``fb.explain``: which store serves each operator of a DataFrame, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from forebay.errors import InvalidArgument
from forebay.spark.driver.conf import require_classic
from forebay.spark.driver.query import operators, plan_of, root_of
from forebay.state.layout import INSTANCES, VNODES, Layout, as_begun, as_stored, kind_of
from forebay.state.places import Root

if TYPE_CHECKING:
    from forebay.state.inspection import OperatorState


def explain(df: DataFrame | StreamingQuery) -> None:
    """Print the forebay operators in a plan: window, keys, aggregates, and the store pattern with the reason.

    Parameters
    ----------
    df : DataFrame or StreamingQuery
        A result of ``fb.groupBy(...).agg(...)``, or any DataFrame made from such results. Of a query that was started, the
        pattern that its custom windows turned out to have is printed too.

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
      instances   1 per state partition
    """
    if not isinstance(df, StreamingQuery | DataFrame):
        raise InvalidArgument(f"explain() got {df!r}; it takes a DataFrame, or a query that was started")
    if isinstance(df, DataFrame):
        require_classic("explain()", df)
    plan = plan_of(df) if isinstance(df, StreamingQuery) else df._jdf.queryExecution().analyzed().toString()
    found = operators(plan, batch=True)
    lines = ["== forebay =="]
    for operator in found:
        shown, choice = operator.layout, operator.choice
        states = _states(root_of(df), shown) if isinstance(df, StreamingQuery) else []
        lines += [
            shown["window"],
            f"  keys        {', '.join(shown['keys']) or 'none'}",
            *([f"  firing      {shown['firing']}"] if "firing" in shown else []),
            *([f"  time        {shown['time']}"] if "time" in shown else []),
            *([f"  aggregates  {', '.join(shown['aggregates'])}"] if not choice.members else []),
            *(f"  {'':10}  {member}" if place else f"  patterns    {member}" for place, member in enumerate(choice.members)),
            *(f"  {'' if place else 'when':10}  {condition}" for place, condition in enumerate(operator.conditions)),
            f"  pattern     {choice.pattern.name}, {choice.pattern.value}",
            f"  because     {choice.reason}",
            f"  instances   {_instances(states[0].layout if states else shown)}",
        ]
        if isinstance(df, StreamingQuery) and kind_of(shown) == "custom_window":
            lines.append(f"  seen        {_seen(states)}")
    print("\n".join(lines if found else [*lines, "no operator of forebay in this plan"]))


def _instances(operator: Layout) -> str:
    if VNODES in operator:
        return f"{operator[VNODES]} virtual nodes in all state partitions together"
    return f"{operator[INSTANCES]} per state partition"


def _states(root: Root, operator: Layout) -> list[OperatorState]:
    """The state that an operator has, where the driver sees it."""
    from forebay.state import inspection

    def is_of(layout: Layout) -> bool:
        return as_begun(as_stored(operator, updating="outputMode" in layout), layout) == layout

    return [state for state in inspection.operators(root) if is_of(state.layout)]


def _seen(states: list[OperatorState]) -> str:
    """What the stores of an operator have seen of its windows."""
    from forebay.store.profile import Profile

    found = ((instance, instance.at()) for state in states for instance in state.instances)
    stores = (instance.stored(newest.version).unaligned() for instance, newest in found if newest and newest.version)
    return Profile.of(store.index for store in stores).advice
