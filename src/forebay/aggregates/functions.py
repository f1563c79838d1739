"""The aggregate functions of ``fb``, with the names, arguments and results of ``pyspark.sql.functions``.

Each call only describes an aggregate; `forebay.groupBy(...).agg(...)` binds it to a DataFrame. An argument is a column name
or any Column expression. Examples of all of them are in ``docs/aggregates.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

from forebay.aggregates.bound import COUNTED
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
        if not isinstance(name, str):
            raise InvalidArgument(f"alias() got {name!r}; the name of a result column is a text")
        return replace(self, name=name)

    if not TYPE_CHECKING:  # which would take any name for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            """An aggregate is no Column, whose methods may be looked for."""
            raise AttributeError(
                f"an aggregate of forebay has no attribute {name!r}: it is no Column. Use {name} on the column that agg() "
                "gives for it"
            )

    def _computed_with(self, other: object) -> NoReturn:
        """An aggregate is no Column."""
        raise InvalidArgument(
            f"{self.function} is part of an expression, and an aggregate of forebay stands alone in agg(). Compute with the "
            'results: agg(fb.sum("x").alias("s"), fb.count("*").alias("n")).select("window", F.col("s") / F.col("n")). '
            "fb.when says which results are emitted."
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _computed_with
    __mod__ = __rmod__ = __pow__ = __rpow__ = __and__ = __rand__ = __or__ = __ror__ = _computed_with
    __lt__ = __le__ = __gt__ = __ge__ = _computed_with


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
    """Emit only the results for which a condition is true, of a window or, in `patterns`, of one pattern.

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
    return Aggregate("first", (col,), {"ignorenulls": flag("first", "ignorenulls", ignorenulls)})


def last(col: ColumnOrName, ignorenulls: bool = False) -> Aggregate:
    """The value that arrived last; with ``ignorenulls`` the last that is not NULL. Across tasks the order is Spark's."""
    return Aggregate("last", (col,), {"ignorenulls": flag("last", "ignorenulls", ignorenulls)})


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
    """Number of distinct values by Spark's HyperLogLog++, with the relative standard deviation ``rsd``, at most 0.39."""
    rsd = _number("approx_count_distinct", "rsd", rsd)
    if not 0 < rsd <= 0.39:
        raise InvalidArgument(f"approx_count_distinct() got rsd={rsd}; it is above 0 and at most 0.39")
    return Aggregate("approx_count_distinct", (col,), {"rsd": rsd})


def hll_sketch_agg(col: ColumnOrName, lgConfigK: int = 12) -> Aggregate:
    """A HyperLogLog sketch of Apache DataSketches, for Spark's ``hll_sketch_estimate`` and ``hll_union``.

    Its result has one byte for each of 2 to the power of ``lgConfigK`` registers.

    Examples
    --------
    >>> import forebay as fb
    >>> sketch = fb.groupBy(spark.range(10), fb.global_window()).agg(fb.hll_sketch_agg("id").alias("ids"))
    >>> sketch.selectExpr("hll_sketch_estimate(ids) n").show()
    +---+
    |  n|
    +---+
    | 10|
    +---+
    <BLANKLINE>
    """
    size = _whole("hll_sketch_agg", "lgConfigK", lgConfigK)
    if not 4 <= size <= 21:
        raise InvalidArgument(f"hll_sketch_agg() got lgConfigK={size}; it can be 4 to 21")
    return Aggregate("hll_sketch_agg", (col,), {"lgConfigK": size})


def kll_sketch_agg_double(col: ColumnOrName, k: int = 200) -> Aggregate:
    """A KLL sketch of floating-point numbers, for Spark's ``kll_sketch_get_quantile_double`` and the like.

    Ranks are wrong by at most 1.33% with the default ``k``, in 99 of 100 sketches. NaN does not count.

    Examples
    --------
    >>> import forebay as fb
    >>> numbers = spark.range(101).selectExpr("cast(id as double) number")
    >>> sketch = fb.groupBy(numbers, fb.global_window()).agg(fb.kll_sketch_agg_double("number").alias("sketch"))
    >>> sketch.selectExpr("kll_sketch_get_quantile_double(sketch, 0.25) quartile").show()
    +--------+
    |quartile|
    +--------+
    |    25.0|
    +--------+
    <BLANKLINE>
    """
    return Aggregate("kll_sketch_agg_double", (col,), {"k": _k_of_kll("kll_sketch_agg_double", k)})


def kll_sketch_agg_bigint(col: ColumnOrName, k: int = 200) -> Aggregate:
    """A KLL sketch of integers, for Spark's ``kll_sketch_get_quantile_bigint`` and the like."""
    return Aggregate("kll_sketch_agg_bigint", (col,), {"k": _k_of_kll("kll_sketch_agg_bigint", k)})


def approx_percentile(col: ColumnOrName, percentage: float | Sequence[float], accuracy: int = 10_000) -> Aggregate:
    """A value of the column whose rank is near the percentage; a list of percentages in [0, 1] gives an array.

    The rank is wrong by at most ``1 / accuracy`` in 99 of 100 results; an accuracy above 21,000 counts as 21,000. It comes
    from a KLL sketch, where Spark has another. NaN does not count, like NULL; in Spark it may be the largest value.

    Examples
    --------
    >>> import forebay as fb
    >>> fb.groupBy(spark.range(101), fb.global_window()).agg(fb.approx_percentile("id", [0.5, 0.9]).alias("p")).show()
    +--------+
    |       p|
    +--------+
    |[50, 90]|
    +--------+
    <BLANKLINE>
    """
    value = _percentages("approx_percentile", percentage)
    if not all(0 <= each <= 1 for each in (value if isinstance(value, list) else [value])):
        raise InvalidArgument(f"approx_percentile() got the percentage {percentage!r}; percentages are between 0 and 1")
    accuracy = _number("approx_percentile", "accuracy", accuracy)
    if accuracy < 1:
        raise InvalidArgument(f"approx_percentile() got accuracy={accuracy}; it must be positive")
    return Aggregate("approx_percentile", (col,), {"percentage": value, "accuracy": accuracy})


def approx_top_k(col: ColumnOrName, k: int = 5, maxItemsTracked: int = 10_000) -> Aggregate:
    """The ``k`` most frequent values with their counts, NULL among them, as an array of structs, the most frequent first.

    Counts are exact while there are at most ``maxItemsTracked`` distinct values. Otherwise they may be too small, by at most
    the number of rows divided by ``maxItemsTracked``, and are never too large.

    Examples
    --------
    >>> import forebay as fb
    >>> words = spark.createDataFrame([("a",), ("b",), ("a",)], "word string")
    >>> fb.groupBy(words, fb.global_window()).agg(fb.approx_top_k("word", 1).alias("top")).show()
    +--------+
    |     top|
    +--------+
    |[{a, 2}]|
    +--------+
    <BLANKLINE>
    """
    k, tracked = _whole("approx_top_k", "k", k), _whole("approx_top_k", "maxItemsTracked", maxItemsTracked)
    if not 1 <= k <= tracked <= 1_000_000:
        raise InvalidArgument(
            f"approx_top_k() got k={k} and maxItemsTracked={tracked}; k is at least 1 and at most maxItemsTracked, "
            "which is at most 1,000,000"
        )
    return Aggregate("approx_top_k", (col,), {"k": k, "maxItemsTracked": tracked})


def count_min_sketch(col: ColumnOrName, eps: float, confidence: float, seed: int = 0) -> Aggregate:
    """Spark's count-min sketch of integers, strings or binaries, byte for byte the one that Spark would make.

    A frequency read from it is too large by at most ``eps`` times the number of rows, with the probability ``confidence``,
    and never too small. Where Spark takes a random ``seed`` if there is none, it is 0: sketches that are to be merged need
    the same, also in the next run of a query.

    Examples
    --------
    >>> import forebay as fb
    >>> sketch = fb.groupBy(spark.range(100), fb.global_window()).agg(fb.count_min_sketch("id", 0.1, 0.9).alias("sketch"))
    >>> sketch.selectExpr("length(sketch) bytes").show()
    +-----+
    |bytes|
    +-----+
    |  692|
    +-----+
    <BLANKLINE>
    """
    from forebay.aggregates.count_min import Table

    eps, confidence = _number("count_min_sketch", "eps", eps), _number("count_min_sketch", "confidence", confidence)
    if not 0 < eps < math.inf or not 0 < confidence < 1:
        raise InvalidArgument(
            f"count_min_sketch() got eps={eps} and confidence={confidence}; eps is positive, confidence between 0 and 1"
        )
    seed = _whole("count_min_sketch", "seed", seed)
    size = Table.of(eps, confidence, seed).size
    if size >= 1 << 31:
        raise InvalidArgument(
            f"count_min_sketch() got eps={eps} and confidence={confidence}, with which a sketch has {size:,} bytes; it must "
            "have less than 2 GiB, as other binary values. Give a larger eps."
        )
    return Aggregate("count_min_sketch", (col,), {"eps": eps, "confidence": confidence, "seed": seed})


def _k_of_kll(function: str, k: int) -> int:
    k = _whole(function, "k", k)
    if not 8 <= k <= 65_535:
        raise InvalidArgument(f"{function}() got k={k}; it can be 8 to 65535")
    return k


def median(col: ColumnOrName, *, counted: bool = False) -> Aggregate:
    """The exact median, interpolated between the two middle values. Holistic.

    Parameters
    ----------
    col : Column or str
        Numbers.
    counted : bool
        Keep how often each value came, not each row. Then it is incremental: tasks count before the shuffle, so that the
        rows of a hot key do not all meet in one task. It pays where a key has far more rows in a window than different
        values.

    Examples
    --------
    >>> import forebay as fb
    >>> grades = spark.createDataFrame([(1,), (2,), (2,), (5,)], "grade int")
    >>> fb.groupBy(grades, fb.global_window()).agg(fb.median("grade", counted=True).alias("median")).show()
    +------+
    |median|
    +------+
    |   2.0|
    +------+
    <BLANKLINE>
    """
    return Aggregate("median", (col,), _counted("median", counted))


def percentile(col: ColumnOrName, percentage: float | Sequence[float], *, counted: bool = False) -> Aggregate:
    """The exact percentile, interpolated; a list of percentages in [0, 1] gives an array. Holistic.

    ``counted`` is as in `median`.
    """
    value = _percentages("percentile", percentage)
    if any(each != each for each in (value if isinstance(value, list) else [value])):  # NaN, which Spark lets through
        raise InvalidArgument(f"percentile() got the percentage {percentage!r}; percentages are between 0 and 1")
    return Aggregate("percentile", (col,), {"percentage": value, **_counted("percentile", counted)})


def mode(col: ColumnOrName, deterministic: bool = False, *, counted: bool = False) -> Aggregate:
    """The most frequent value. Of several, forebay always takes the smallest, where it has an order. Holistic.

    ``counted`` is as in `median`.
    """
    deterministic = flag("mode", "deterministic", deterministic)
    return Aggregate("mode", (col,), {"deterministic": deterministic, **_counted("mode", counted)})


def collect_list(col: ColumnOrName) -> Aggregate:
    """All values that are not NULL, in order of arrival. Holistic."""
    return Aggregate("collect_list", (col,))


def collect_set(col: ColumnOrName, *, counted: bool = False) -> Aggregate:
    """The distinct values that are not NULL, in no order. Holistic.

    ``counted`` is as in `median`.
    """
    return Aggregate("collect_set", (col,), _counted("collect_set", counted))


def count_distinct(col: ColumnOrName, *cols: ColumnOrName, counted: bool = False) -> Aggregate:
    """Number of distinct rows of the columns, those with a NULL left out. Holistic.

    ``counted`` is as in `median`, and for one column.
    """
    if counted and cols:
        raise InvalidArgument("count_distinct(..., counted=True) takes one column; leave counted out for several")
    return Aggregate("count_distinct", (col, *cols), _counted("count_distinct", counted))


def _percentages(function: str, percentage: Any) -> Any:
    if isinstance(percentage, str | Real) or not isinstance(percentage, Iterable):
        return _number(function, "percentage", percentage)
    try:
        found = list(percentage)
    except TypeError:  # a Column has elements, and none that can be told
        return _number(function, "percentage", percentage)
    if not found:
        raise InvalidArgument(f"{function}() got no percentages: {percentage!r}")
    return [_number(function, "percentage", each) for each in found]


def _number(function: str, name: str, value: Any) -> Any:
    """The number, also one of numpy's; `InvalidArgument` for a Column, say: it must be known before the query runs."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgument(f"{function}() got {name}={value!r}; it must be a number of Python")
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
        raise InvalidArgument(f"{function}() got {name}={number}; it must be a number of 64 bits at most")
    return number


def _whole(function: str, name: str, value: Any) -> int:
    number = _number(function, name, value)
    if not isinstance(number, int):
        raise InvalidArgument(f"{function}() got {name}={number!r}; it is a whole number")
    return number


def flag(function: str, name: str, value: Any) -> bool:
    """The flag; `InvalidArgument` for what is not True or False: a text, as settings are, would count as True."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{function}() got {name}={value!r}; it is True or False")
    return value


def _counted(function: str, counted: bool) -> dict[str, Any]:
    return {COUNTED: True} if flag(function, "counted", counted) else {}


def apply(func: Callable[..., Any], schema: StructType | str) -> Apply:
    """A function of your own over all rows of a key in a window. Holistic.

    Parameters
    ----------
    func : callable
        ``func(key, rows)``. ``key`` is the tuple of key values; times before the year 1 or after 9999, which Python does not
        have, are texts. ``rows`` has all columns of the stream, as the type that the parameter ``rows`` is annotated with:
        ``polars.DataFrame`` (also without annotation), ``pandas.DataFrame`` or ``pyarrow.Table``. It returns rows as any of
        the three.
    schema : StructType or str
        The columns of the returned rows. They follow the window and the keys in the result.

    Examples
    --------
    >>> import polars as pl
    >>> def largest(key, rows: pl.DataFrame) -> pl.DataFrame:
    ...     return rows.top_k(3, by="price").select("item", "price")
    >>> aggregate = apply(largest, "item string, price double")
    """
    if not callable(func):
        raise InvalidArgument(f"apply() got {func!r}; it takes a function func(key, rows)")
    return Apply(func, schema)
