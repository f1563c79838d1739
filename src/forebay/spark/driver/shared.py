"""``fb.patterns``: several patterns over the same events, with one state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from forebay.aggregates.functions import Aggregate, Apply, Condition
from forebay.errors import InvalidArgument
from forebay.spark.driver.assignments import CountWindow, CustomWindow, PrecedingWindow, SessionWindow, TimeWindow
from forebay.spark.driver.columns import Keys, folding, keys_of, quoted, text_of
from forebay.spark.driver.conditions import apart
from forebay.spark.driver.conf import ready, require_classic
from forebay.spark.driver.vehicle import run

if TYPE_CHECKING:
    from forebay.spark.driver.shared_binding import Asked

_Shared = TimeWindow | SessionWindow | CountWindow | PrecedingWindow | CustomWindow


class SharedPatterns:
    """Patterns over the same events. Made by `patterns`; each `add` gives a new one."""

    def __init__(self, df: DataFrame, keys: tuple[Column | str, ...], asked: tuple[Asked, ...] = ()) -> None:
        self._df, self._keys, self._asked = df, keys, asked
        self._results: DataFrame | None = None

    def add(self, name: str, window: _Shared, *aggregates: Aggregate | Apply | Condition, keys: Keys = ()) -> SharedPatterns:
        """These patterns and one more.

        Parameters
        ----------
        name : str
            What it is called in the results, and in the state when a query is started again.
        window : Window
            `window`, `session_window` with a fixed gap, `count_window`, `preceding` or `custom_window`. All windows over
            event time must be over the same column.
        *aggregates : Aggregate, Apply or Condition
            What ``groupBy(...).agg()`` would take. Conditions (`when`) are over the columns that `of` gives, without
            functions in Python.
        keys : Column, str, or sequence of those
            Keys that this pattern has beside those of all.

        Returns
        -------
        SharedPatterns
            What its `results` are, and those of one pattern (`of`).

        Raises
        ------
        InvalidArgument
            For a name that there is already, and a window that cannot share events. `results` tells what is wrong with
            aggregates, conditions and keys.

        Examples
        --------
        >>> import forebay as fb
        >>> rows = [("2024-05-01 10:00:01", "a", "x", 3.0), ("2024-05-01 10:00:09", "a", "y", 5.0)]
        >>> payments = spark.createDataFrame(rows, "time string, card string, shop string, amount double")
        >>> payments = payments.withColumn("time", payments.time.cast("timestamp"))
        >>> hour = fb.window("time", "1 hour")
        >>> shared = fb.patterns(payments, "card").add("hourly", hour, fb.median("amount").alias("median"))
        >>> shared = shared.add("by shop", hour, fb.count("*").alias("n"), fb.max("amount"), fb.when("n = 1"), keys="shop")
        >>> shared.of("by shop").orderBy("shop").drop("window").show()
        +----+----+---+-----------+
        |card|shop|  n|max(amount)|
        +----+----+---+-----------+
        |   a|   x|  1|        3.0|
        |   a|   y|  1|        5.0|
        +----+----+---+-----------+
        <BLANKLINE>
        """
        from forebay.spark.driver.shared_binding import Asked  # imports polars, which a worker must not do early

        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"add() got the name {name!r}; the name of a pattern is a text that is not empty")
        fold = folding(self._df.sparkSession)
        if fold(name) in (fold(each.name) for each in self._asked):
            raise InvalidArgument(f"there is a pattern {name!r} already; give this one another name")
        if not isinstance(window, _Shared):
            raise InvalidArgument(
                f"the pattern {name!r} has {window!r} for its window; patterns that share events have fb.window, "
                "fb.session_window, fb.count_window, fb.preceding or fb.custom_window. Write fb.groupBy for others."
            )
        if isinstance(window, SessionWindow) and isinstance(window.gap_duration, Column):
            raise InvalidArgument(
                f"the gap of the pattern {name!r} is an expression; sessions that share events have a fixed one, such as "
                "'5 minutes'. Write fb.groupBy for a gap that each row brings."
            )
        asked = Asked(name, window, *apart(aggregates), keys_of("add()", [keys]))
        return SharedPatterns(self._df, self._keys, (*self._asked, asked))

    def results(self) -> DataFrame:
        """The results of all patterns, from one operator.

        Returns
        -------
        DataFrame
            ``pattern``, the name of the pattern that a result is of; the common keys; and for each pattern a column of its
            name: a struct of the window, the pattern's other keys and its aggregates, NULL in the results of other patterns.
            Output mode is append.

        Raises
        ------
        ForebayError
            Whatever could not run, as ``groupBy(...).agg()`` raises it; no pattern, or patterns over different times.

        Examples
        --------
        >>> import forebay as fb
        >>> bids = spark.createDataFrame([("a", 3), ("a", 9), ("a", 4), ("b", 1)], "item string, price int").coalesce(1)
        >>> shared = fb.patterns(bids, "item").add("pairs", fb.count_window(2), fb.max("price").alias("max"))
        >>> shared.results().select("pattern", "item", "pairs.max").show()
        +-------+----+---+
        |pattern|item|max|
        +-------+----+---+
        |  pairs|   a|  9|
        +-------+----+---+
        <BLANKLINE>
        """
        if self._results is None:
            from forebay.spark.driver.shared_binding import bind_patterns  # imports polars

            if not self._asked:
                raise InvalidArgument(
                    "there is no pattern yet; add one, and go on with what add() gives, which is another object: "
                    "shared = shared.add('hourly', fb.window('time', '1 hour'), fb.count('*'))"
                )
            conf = ready(self._df)
            bound, shared = bind_patterns(self._df, self._keys, self._asked, conf)
            told = tuple(f"{each.name}: {text_of(one.condition)}" for each in self._asked for one in each.conditions)
            results = run(self._df, bound, conf, told)
            for each in self._asked:
                if each.conditions:
                    results = shared.matching(results, each.name, each.conditions)
            self._results = results.select(*shared.columns)
        return self._results

    def of(self, name: str, results: DataFrame | None = None) -> DataFrame:
        """The results of one pattern, as ``groupBy(...).agg()`` gives them.

        A streaming query that is made of this alone runs the operator of all patterns. To write several patterns from one
        query, write `results` with ``foreachBatch``, and take each pattern out of the batch: see the example of `patterns`.

        Parameters
        ----------
        name : str
            The name of a pattern.
        results : DataFrame, optional
            Some of what `results` gives, such as the results of one micro-batch.

        Returns
        -------
        DataFrame
            The window, the keys, the aggregates; with `preceding` the time of the event before them.

        Raises
        ------
        ForebayError
            If there is no such pattern, and whatever `results` raises.

        Examples
        --------
        >>> import forebay as fb
        >>> rows = [("2024-05-01 10:00:01", "a", 3.0), ("2024-05-01 10:00:09", "a", 5.0), ("2024-05-01 10:30:00", "a", 2.0)]
        >>> payments = spark.createDataFrame(rows, "time string, card string, amount double").coalesce(1)
        >>> payments = payments.withColumn("time", payments.time.cast("timestamp"))
        >>> shared = fb.patterns(payments, "card").add(
        ...     "recent", fb.preceding("time", "1 minute"), fb.count("*").alias("n"), fb.sum("amount").alias("total"))
        >>> shared.of("recent").orderBy("event_time").drop("window").show()
        +-------------------+----+---+-----+
        |         event_time|card|  n|total|
        +-------------------+----+---+-----+
        |2024-05-01 10:00:01|   a|  1|  3.0|
        |2024-05-01 10:00:09|   a|  2|  8.0|
        |2024-05-01 10:30:00|   a|  1|  2.0|
        +-------------------+----+---+-----+
        <BLANKLINE>
        """
        asked = next((each for each in self._asked if each.name == name), None)
        if asked is None:
            known = ", ".join(each.name for each in self._asked) or "none yet"
            raise InvalidArgument(f"there is no pattern {name!r}; there are: {known}")
        all_ = self.results()
        common = [F.col(quoted(field.name)) for field in all_.schema.fields[1 : 1 + len(self._keys)]]
        own = [
            F.col(f"{quoted(name)}.{quoted(field.name)}").alias(field.name, **_metadata(field.metadata))
            for field in all_.select(f"{quoted(name)}.*").schema.fields
        ]
        first = 2 if isinstance(asked.window, PrecedingWindow) else 1
        columns = [*own[:first], *common, *own[first:]]
        # Given `pattern = 'name'`, Spark would try the conditions of this pattern on the results of others, too, and fail
        # where they do not suit those.
        return (all_ if results is None else results).where(F.col(quoted(name)).isNotNull()).select(*columns)


def _metadata(metadata: dict[str, object]) -> dict[str, object]:
    return {"metadata": metadata} if metadata else {}


def patterns(df: DataFrame, *keys: Keys) -> SharedPatterns:
    """Several patterns over the same events: one operator that stores every event once, however many patterns need it.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame whose time column has a watermark, or a batch DataFrame.
    *keys : Column or str
        Keys that all patterns have, or lists of them.

    Returns
    -------
    SharedPatterns
        Call its `SharedPatterns.add` for each pattern, then `SharedPatterns.results`.

    Examples
    --------
    >>> import forebay as fb
    >>> payments = spark.createDataFrame(
    ...     [("2024-05-01 10:00:01", "a", 3.0), ("2024-05-01 10:00:09", "a", 5.0), ("2024-05-01 10:07:00", "b", 1.0)],
    ...     "time string, card string, amount double",
    ... ).selectExpr("cast(time as timestamp) time", "card", "amount")
    >>> shared = (
    ...     fb.patterns(payments, "card")
    ...     .add("typical", fb.window("time", "5 minutes"), fb.median("amount").alias("median"))
    ...     .add("visits", fb.session_window("time", "10 seconds"), fb.collect_list("amount").alias("amounts"))
    ... )
    >>> shared.results().orderBy("card", "pattern").select("pattern", "card", "typical.median", "visits.amounts").show()
    +-------+----+------+----------+
    |pattern|card|median|   amounts|
    +-------+----+------+----------+
    |typical|   a|   4.0|      NULL|
    | visits|   a|  NULL|[3.0, 5.0]|
    |typical|   b|   1.0|      NULL|
    | visits|   b|  NULL|     [1.0]|
    +-------+----+------+----------+
    <BLANKLINE>
    >>> shared.of("typical").orderBy("card").select("window.start", "card", "median").show()
    +-------------------+----+------+
    |              start|card|median|
    +-------------------+----+------+
    |2024-05-01 10:00:00|   a|   4.0|
    |2024-05-01 10:05:00|   b|   1.0|
    +-------------------+----+------+
    <BLANKLINE>

    Of a stream, one query writes all of them:

    >>> def write(batch, number):
    ...     batch.persist()
    ...     for name in ("typical", "visits"):
    ...         shared.of(name, batch).write.mode("append").parquet(name)
    ...     batch.unpersist()
    """
    require_classic("patterns()", df)
    return SharedPatterns(df, keys_of("patterns()", keys))
