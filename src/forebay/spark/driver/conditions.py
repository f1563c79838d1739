"""``fb.when``: which results are emitted."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.aggregates.functions import Aggregate, Apply, Condition
from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import analysis
from forebay.spark.driver.columns import require_column, text_of
from forebay.spark.driver.trees import subtree


def apart(
    given: Sequence[Aggregate | Apply | Condition],
) -> tuple[tuple[Aggregate | Apply, ...], tuple[Condition, ...]]:
    """What is to be computed, and what results must be like to be emitted."""
    computed = tuple(each for each in given if not isinstance(each, Condition))
    return computed, tuple(each for each in given if isinstance(each, Condition))


def matching(results: DataFrame, conditions: Sequence[Condition]) -> DataFrame:
    """The results for which all conditions are true; an error of ours for what is no condition over their columns."""
    for each in conditions:
        with analysis():
            results = results.where(_checked(results, each))
    return results


def matching_where(of: Column, results: DataFrame, conditions: Sequence[Condition], seen: DataFrame) -> DataFrame:
    """The results for which all conditions are true, and all others for which ``of`` is not true.

    Conditions are over the columns of ``seen``, which the results have among others. Spark evaluates functions in Python
    for all results, whatever ``of`` says, so they are refused.
    """
    for each in conditions:
        with analysis():
            condition = _checked(seen, each)
            analysed = seen.where(condition)._jdf.queryExecution().analyzed()
            if any("PythonUDF" in part.getClass().getSimpleName() for part in subtree(analysed.condition())):
                raise InvalidArgument(
                    f"when() got {text_of(each.condition)}, which has a function in Python. It would be called with the "
                    "results of other patterns, too. Filter what of() gives instead."
                )
            results = results.where(F.when(of, condition).otherwise(F.lit(True)))
    return results


def _checked(results: DataFrame, each: Condition) -> Column:
    """The condition as a column, which must be true or false."""
    require_column("when()", each.condition, "a condition: a Column, or SQL such as 'n >= 5'")
    condition = F.expr(each.condition) if isinstance(each.condition, str) else each.condition
    kind = results.select(condition).schema.fields[0].dataType
    if not isinstance(kind, T.BooleanType):
        raise InvalidArgument(
            f"when() got {text_of(each.condition)}, which is a {kind.simpleString()}; a condition is true or false, "
            "for example F.col('n') >= 5"
        )
    return condition
