"""``fb.when``: which results are emitted."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.aggregates.functions import Aggregate, Apply, Condition
from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import analysis
from forebay.spark.driver.columns import text_of


def apart(
    given: Sequence[Aggregate | Apply | Condition],
) -> tuple[tuple[Aggregate | Apply, ...], tuple[Condition, ...]]:
    """What is to be computed, and what results must be like to be emitted."""
    computed = tuple(each for each in given if not isinstance(each, Condition))
    return computed, tuple(each for each in given if isinstance(each, Condition))


def matching(results: DataFrame, conditions: Sequence[Condition], of: Column | None = None) -> DataFrame:
    """The results for which all conditions are true, and all for which ``of`` is not.

    An error of ours is raised for what is no condition over their columns.
    """
    for each in conditions:
        with analysis():
            condition = F.expr(each.condition) if isinstance(each.condition, str) else each.condition
            kind = results.select(condition).schema.fields[0].dataType
            if not isinstance(kind, T.BooleanType):
                raise InvalidArgument(
                    f"when() got {text_of(each.condition)}, which is a {kind.simpleString()}; a condition is true or false, "
                    "for example F.col('n') >= 5"
                )
            results = results.where(condition if of is None else F.when(of, condition).otherwise(F.lit(True)))
    return results
