"""The aggregate functions of ``fb``, with the names, arguments and results of ``pyspark.sql.functions``.

Each call only describes an aggregate; `forebay.groupBy(...).agg(...)` binds it to a DataFrame. An argument is a column name
or any Column expression. Examples of all of them are in ``docs/aggregates.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forebay.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    ColumnOrName = Column | str


@dataclass(frozen=True)
class Aggregate:
    """An aggregate that is not bound to a DataFrame yet.

    Attributes
    ----------
    function : str
        Its name in ``pyspark.sql.functions``.
    arguments : tuple
        Columns or column names.
    options : dict
        Its other arguments.
    name : str or None
        The result column's name; None for the one that Spark gives.
    """

    function: str
    arguments: tuple[ColumnOrName, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    name: str | None = None

    def alias(self, name: str) -> Aggregate:
        """The same aggregate with another name for its result column."""
        return replace(self, name=name)


@dataclass(frozen=True)
class Apply:
    """A user's function over the rows of each key and window. Made by `apply`."""

    function: Callable[..., Any]
    schema: StructType | str


@dataclass(frozen=True)
class Condition:
    """What results must be like to be emitted. Made by `when`."""

    condition: ColumnOrName


def when(condition: ColumnOrName) -> Condition:
    """Emit only the results for which a condition is true.

    Spark evaluates it, before anything else sees a result. It changes nothing in the state: a query may be restarted with
    another condition.

    Parameters
    ----------
    condition : Column or str
        A condition over the columns of the result, as a Column or as SQL.

    Examples
    --------
    >>> import forebay as fb
    >>> from pyspark.sql import functions as F
    >>> bids = spark.createDataFrame([("a", 3), ("b", 9), ("a", 4)], "item string, price int")
    >>> fb.groupBy(bids, fb.global_window(), "item").agg(
    ...     fb.count("*").alias("n"), fb.max("price").alias("max"), fb.when(F.col("n") > 1), fb.when("max < 5")).show()
    +----+---+---+
    |item|  n|max|
    +----+---+---+
    |   a|  2|  4|
    +----+---+---+
    <BLANKLINE>
    """
    return Condition(condition)


def count(col: ColumnOrName) -> Aggregate:
    """Number of rows where ``col`` is not NULL; ``count("*")`` counts all rows."""
    return Aggregate("count", (col,))


def sum(col: ColumnOrName) -> Aggregate:
    """Sum of the values that are not NULL: bigint for integers, double for floats, a wider decimal for decimals."""
    return Aggregate("sum", (col,))


def avg(col: ColumnOrName) -> Aggregate:
    """Mean of the values that are not NULL."""
    return Aggregate("avg", (col,))


def mean(col: ColumnOrName) -> Aggregate:
    """Mean of the values that are not NULL; another name of `avg`."""
    return Aggregate("mean", (col,))


def min(col: ColumnOrName) -> Aggregate:
    """Smallest value; NaN is larger than any number."""
    return Aggregate("min", (col,))


def max(col: ColumnOrName) -> Aggregate:
    """Largest value; NaN is larger than any number."""
    return Aggregate("max", (col,))


def stddev(col: ColumnOrName) -> Aggregate:
    """Sample standard deviation; NULL for a single value."""
    return Aggregate("stddev", (col,))


def stddev_samp(col: ColumnOrName) -> Aggregate:
    """Sample standard deviation; NULL for a single value."""
    return Aggregate("stddev_samp", (col,))


def stddev_pop(col: ColumnOrName) -> Aggregate:
    """Population standard deviation."""
    return Aggregate("stddev_pop", (col,))


def variance(col: ColumnOrName) -> Aggregate:
    """Sample variance; NULL for a single value."""
    return Aggregate("variance", (col,))


def var_samp(col: ColumnOrName) -> Aggregate:
    """Sample variance; NULL for a single value."""
    return Aggregate("var_samp", (col,))


def var_pop(col: ColumnOrName) -> Aggregate:
    """Population variance."""
    return Aggregate("var_pop", (col,))


def first(col: ColumnOrName, ignorenulls: bool = False) -> Aggregate:
    """The value that arrived first; with ``ignorenulls`` the first that is not NULL. Across tasks the order is Spark's."""
    return Aggregate("first", (col,), {"ignorenulls": ignorenulls})


def last(col: ColumnOrName, ignorenulls: bool = False) -> Aggregate:
    """The value that arrived last; with ``ignorenulls`` the last that is not NULL. Across tasks the order is Spark's."""
    return Aggregate("last", (col,), {"ignorenulls": ignorenulls})


def current(col: ColumnOrName) -> Aggregate:
    """The value in the row that a window of `preceding` ends with, NULL included. Other windows have no such row.

    Spark has no such function; in SQL it is the column itself, beside an aggregate with ``OVER``.
    """
    return Aggregate("current", (col,))


def max_by(col: ColumnOrName, ord: ColumnOrName) -> Aggregate:
    """The value of ``col`` in the row where ``ord`` is largest; any of them when several tie."""
    return Aggregate("max_by", (col, ord))


def min_by(col: ColumnOrName, ord: ColumnOrName) -> Aggregate:
    """The value of ``col`` in the row where ``ord`` is smallest; any of them when several tie."""
    return Aggregate("min_by", (col, ord))


def all_max_by(col: ColumnOrName, ord: ColumnOrName) -> Aggregate:
    """All values of ``col`` that are not NULL, in rows where ``ord`` is largest, as an array: `max_by` with its ties.

    Spark has no such function.
    """
    return Aggregate("all_max_by", (col, ord))


def bool_and(col: ColumnOrName) -> Aggregate:
    """Whether all values that are not NULL are true."""
    return Aggregate("bool_and", (col,))


def bool_or(col: ColumnOrName) -> Aggregate:
    """Whether any value is true."""
    return Aggregate("bool_or", (col,))


def approx_count_distinct(col: ColumnOrName, rsd: float = 0.05) -> Aggregate:
    """Number of distinct values by Spark's HyperLogLog++, with the relative standard deviation ``rsd``."""
    return Aggregate("approx_count_distinct", (col,), {"rsd": rsd})


def median(col: ColumnOrName) -> Aggregate:
    """The exact median, interpolated between the two middle values. Holistic."""
    return Aggregate("median", (col,))


def percentile(col: ColumnOrName, percentage: float | Sequence[float]) -> Aggregate:
    """The exact percentile, interpolated; a list of percentages in [0, 1] gives an array. Holistic."""
    value = percentage if isinstance(percentage, int | float) else list(percentage)
    if value == []:
        raise InvalidArgument("percentile() got no percentages")
    return Aggregate("percentile", (col,), {"percentage": value})


def mode(col: ColumnOrName, deterministic: bool = False) -> Aggregate:
    """The most frequent value. Of several, forebay always takes the smallest, where it has an order. Holistic."""
    return Aggregate("mode", (col,), {"deterministic": deterministic})


def collect_list(col: ColumnOrName) -> Aggregate:
    """All values that are not NULL, in order of arrival. Holistic."""
    return Aggregate("collect_list", (col,))


def collect_set(col: ColumnOrName) -> Aggregate:
    """The distinct values that are not NULL, in no order. Holistic."""
    return Aggregate("collect_set", (col,))


def count_distinct(col: ColumnOrName, *cols: ColumnOrName) -> Aggregate:
    """Number of distinct rows of the columns, those with a NULL left out. Holistic."""
    return Aggregate("count_distinct", (col, *cols))


def apply(func: Callable[..., Any], schema: StructType | str) -> Apply:
    """A function of your own over all rows of a key in a window. Holistic.

    Parameters
    ----------
    func : callable
        ``func(key, rows)``. ``key`` is the tuple of key values. ``rows`` has all columns of the stream, as the type that
        the parameter ``rows`` is annotated with: ``polars.DataFrame`` (also without annotation), ``pandas.DataFrame`` or
        ``pyarrow.Table``. It returns rows as any of the three.
    schema : StructType or str
        The columns of the returned rows. They follow the window and the keys in the result.

    Examples
    --------
    >>> import polars as pl
    >>> def largest(key, rows: pl.DataFrame) -> pl.DataFrame:
    ...     return rows.top_k(3, by="price").select("item", "price")
    >>> aggregate = apply(largest, "item string, price double")
    """
    return Apply(func, schema)
