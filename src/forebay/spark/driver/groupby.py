"""``fb.groupBy(...).agg(...)``: the entry point; and ``fb.rolling``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from pyspark.sql import Column, DataFrame

from forebay.aggregates import functions
from forebay.aggregates.functions import Aggregate, Apply, Condition
from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import joins_streams
from forebay.spark.driver.assignments import (
    CountWindow,
    CustomWindow,
    PrecedingWindow,
    SessionWindow,
    TimeWindow,
    WholeKey,
    Window,
)
from forebay.spark.driver.columns import Keys, got, keys_of, text_of
from forebay.spark.driver.conditions import apart, matching
from forebay.spark.driver.conf import ready, require_classic
from forebay.spark.driver.durations import Duration, microseconds, positive_microseconds
from forebay.spark.driver.vehicle import run

if TYPE_CHECKING:
    from forebay.windows import Firing


class GroupedStream:
    """A DataFrame grouped by window and keys. Made by `groupBy`."""

    def __init__(
        self,
        df: DataFrame,
        window: Window,
        keys: tuple[Column | str, ...],
        firing: Firing | None = None,
        idle_timeout: int | None = None,
    ) -> None:
        self._df = df
        self._window = window
        self._keys = keys
        self._firing = firing
        self._idle_timeout = idle_timeout

    def firing(
        self,
        every: Duration | None = None,
        allowedLateness: Duration | None = None,
        accumulate: bool = True,
        idleTimeout: Duration | None = None,
    ) -> GroupedStream:
        """Have windows of a stream fire before they end, and again when late rows come.

        A window fires when the watermark reaches its end, with ``accumulate`` whether it has had rows since it last fired or
        not. With ``every`` it also fires whenever the watermark passes a multiple of that, if it has had rows since. With
        ``allowedLateness`` it is kept after its end for so long, and fires in each micro-batch that brings it late rows. It
        fires at most once in a micro-batch. What arrives later still is late and dropped.

        State is kept for each window and key, so rows of sliding windows are stored once for each of their windows. A late
        row of a session is judged by its own window, from its time to the end of the gap.

        Parameters
        ----------
        every : str or timedelta, optional
            A duration of event time, for example ``"1 minute"``: early firings.
        allowedLateness : str or timedelta, optional
            A duration of event time: late firings.
        accumulate : bool
            Whether a result is of all rows of the window so far, to replace the one before; or of the rows since then, to
            be added to it. Sessions that merge after they have fired give a result for the longer one; nothing takes the
            earlier results back.
        idleTimeout : str or timedelta, optional
            A duration of wall time: when the watermark has not moved for so long, it goes on with the wall clock from where
            it is, so that the last windows of a stream that has fallen silent end. Rows that come for them then are late.
            It must be longer than the interval at which the query's micro-batches run. Spark runs them all the time for
            such a query, data or not, so ``trigger(availableNow=True)`` does not end by itself, and the results have no
            watermark for another operator.

        Returns
        -------
        GroupedStream
            Call its `agg`. Of a batch DataFrame each window fires once.

        Examples
        --------
        >>> import forebay as fb
        >>> ticks = spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
        >>> hourly = fb.groupBy(ticks, fb.window("timestamp", "1 hour")).firing(every="1 minute", allowedLateness="1 day")
        >>> fb.explain(hourly.agg(fb.count("*")))
        == forebay ==
        window(timestamp, 3600 s, every 3600 s, from 0 s)
          keys        none
          firing      every 60 s, late for 86400 s, accumulating
          aggregates  count(*)
          pattern     RMW, read-modify-write
          because     every aggregate has a small intermediate state that rows are merged into
          instances   1 per state partition
        """
        from forebay.windows import Firing

        if not isinstance(self._window, TimeWindow | SessionWindow | CustomWindow):
            raise InvalidArgument(f"firing() is for windows over event time, not for {self._window!r}")
        functions.flag("firing", "accumulate", accumulate)
        if self._firing or self._idle_timeout:
            raise InvalidArgument("firing() was called twice; give all of it in one call")
        session = self._df.sparkSession
        each = None if every is None else positive_microseconds(session, "every", every)
        allowed = 0 if allowedLateness is None else microseconds(session, "allowedLateness", allowedLateness)
        if allowed < 0:
            raise InvalidArgument(f"allowedLateness {allowedLateness!r} is negative")
        idle = None if idleTimeout is None else positive_microseconds(session, "idleTimeout", idleTimeout)
        if idle is not None and joins_streams(self._df):
            raise InvalidArgument(
                "idleTimeout goes by the watermark of the query, and the results of a join of two streams by Spark may come "
                "later than that: their windows would have fired. Join with fb.join or fb.intervalJoin, or leave it out."
            )
        firing = None if each is None and not allowed else Firing(each, allowed, accumulate)
        if firing is None and (idle is None or not accumulate):
            raise InvalidArgument(
                "firing() needs every or allowedLateness: without them a window fires once, and there is nothing to "
                f"{'accumulate' if accumulate else 'discard'}. Give one of them, or idleTimeout alone."
            )
        if firing and isinstance(self._window, CustomWindow) and self._window.hint == "aligned":
            raise InvalidArgument("every and allowedLateness are per key; leave out the window's hint 'aligned'")
        return GroupedStream(self._df, self._window, self._keys, firing, idle)

    def agg(self, *aggregates: Aggregate | Apply | Condition) -> DataFrame:
        """Compute aggregates of each window and key.

        Parameters
        ----------
        *aggregates : Aggregate, Apply or Condition
            Aggregates of this library, such as ``fb.median("price").alias("m")``, or a single ``fb.apply``; and what must be
            true of a result that is emitted, such as ``fb.when("m > 100")``.

        Returns
        -------
        DataFrame
            The window, the keys, the aggregates. If the input is a stream, a result is emitted once, when its window fires
            (``outputMode("append")``); or, for tumbling and sliding windows with incremental aggregates, in every
            micro-batch that changes it (``outputMode("update")``). Of a batch DataFrame all windows are emitted that would
            ever fire.

        Raises
        ------
        ForebayError
            Whatever could not run: an unknown column, a type an aggregate cannot take, a missing watermark, a malformed
            duration, a wrong setting. Each says what to change.
        """
        from forebay.spark.driver.binding import bind  # imports polars, which a worker must not do before it limits threads

        conf = ready(self._df)
        more = (self._firing, self._idle_timeout) if self._df.isStreaming else (None, None)
        computed, conditions = apart(aggregates)
        bound = bind(self._df, self._window, self._keys, computed, conf, *more)
        results = run(self._df, bound, conf, tuple(text_of(each.condition) for each in conditions))
        return matching(results, conditions)

    def count(self) -> DataFrame:
        """Count the rows of each window and key, in a column ``count`` as Spark has it.

        Examples
        --------
        >>> import forebay as fb
        >>> ticks = spark.range(6).selectExpr("timestamp_seconds(id) at", "id % 2 odd")
        >>> fb.groupBy(ticks, fb.window("at", "1 minute"), "odd").count().orderBy("odd").select("odd", "count").show()
        +---+-----+
        |odd|count|
        +---+-----+
        |  0|    3|
        |  1|    3|
        +---+-----+
        <BLANKLINE>
        """
        return self.agg(functions.count("*").alias("count"))

    def sum(self, *columns: str) -> DataFrame:
        """Add up columns; the same as `agg` with a ``fb.sum`` of each."""
        return self._of_each(functions.sum, columns)

    def avg(self, *columns: str) -> DataFrame:
        """Take the mean of columns; the same as `agg` with a ``fb.avg`` of each."""
        return self._of_each(functions.avg, columns)

    mean = avg

    def min(self, *columns: str) -> DataFrame:
        """Take the smallest value of columns; the same as `agg` with a ``fb.min`` of each."""
        return self._of_each(functions.min, columns)

    def max(self, *columns: str) -> DataFrame:
        """Take the largest value of columns; the same as `agg` with a ``fb.max`` of each."""
        return self._of_each(functions.max, columns)

    def _of_each(self, function: Callable[[str], Aggregate], columns: Sequence[str]) -> DataFrame:
        if not columns:
            raise InvalidArgument("name the columns; Spark takes all numbers where none is named, forebay does not")
        return self.agg(*map(function, columns))


def groupBy(df: DataFrame, window: Window, *keys: Keys) -> GroupedStream:
    """Group a stream by windows over event time and, within them, by keys.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame whose time column has a watermark, or a batch DataFrame.
    window : Window
        The window function: `window`, `session_window`, `count_window`, `preceding`, `global_window` or `custom_window`.
    *keys : Column or str
        Key columns or expressions, or lists of them; none to aggregate all rows of a window. NULL is a key like any other.

    Returns
    -------
    GroupedStream
        Call its `GroupedStream.agg`.

    Examples
    --------
    >>> import forebay as fb
    >>> trades = spark.createDataFrame(
    ...     [("2024-05-01 10:00:01", "a", 3.0), ("2024-05-01 10:00:02", "a", 5.0), ("2024-05-01 10:07:00", "b", 1.0)],
    ...     "time string, item string, price double",
    ... ).selectExpr("cast(time as timestamp) time", "item", "price")
    >>> result = fb.groupBy(trades, fb.window("time", "5 minutes"), "item").agg(
    ...     fb.median("price").alias("median"), fb.count("*").alias("n"))
    >>> result.orderBy("item").select("window.start", "item", "median", "n").show()
    +-------------------+----+------+---+
    |              start|item|median|  n|
    +-------------------+----+------+---+
    |2024-05-01 10:00:00|   a|   4.0|  2|
    |2024-05-01 10:05:00|   b|   1.0|  1|
    +-------------------+----+------+---+
    <BLANKLINE>
    """
    require_classic("groupBy()", df)
    if not isinstance(window, TimeWindow | SessionWindow | CountWindow | PrecedingWindow | WholeKey | CustomWindow):
        raise InvalidArgument(
            f"groupBy() got {got(window)} for its window; write for example fb.window('time', '1 hour') or "
            "fb.session_window('time', '5 minutes'), or fb.rolling(df, ...) for all rows of a key without a window"
        )
    return GroupedStream(df, window, keys_of("groupBy()", keys))


def rolling(df: DataFrame, *keys: Keys, emit: Literal["batch", "every"] = "batch") -> GroupedStream:
    """Group a stream by keys alone, for aggregates over all of a key's rows so far.

    Every micro-batch emits one row for each key that has had rows in it, to be written with an upsert; or, with
    ``emit="every"``, one for each row. Nothing is ever forgotten: state grows with the number of keys, and with holistic
    aggregates with the number of rows. Output mode is append; no watermark is needed.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame, or a batch one, of which all rows are one micro-batch.
    *keys : Column or str
        Key columns or expressions, or lists of them.
    emit : str
        ``batch`` or ``every``.

    Returns
    -------
    GroupedStream
        Call its `GroupedStream.agg`. Results have the keys and the aggregates.

    Examples
    --------
    >>> import forebay as fb
    >>> sales = spark.createDataFrame([("a", 1), ("b", 5), ("a", 2)], "shop string, amount int").coalesce(1)
    >>> fb.rolling(sales, "shop").agg(fb.sum("amount").alias("total")).orderBy("shop").show()
    +----+-----+
    |shop|total|
    +----+-----+
    |   a|    3|
    |   b|    5|
    +----+-----+
    <BLANKLINE>
    >>> fb.rolling(sales, "shop", emit="every").agg(fb.sum("amount").alias("total")).orderBy("total").show()
    +----+-----+
    |shop|total|
    +----+-----+
    |   a|    1|
    |   a|    3|
    |   b|    5|
    +----+-----+
    <BLANKLINE>
    """
    require_classic("rolling()", df)
    if emit not in ("batch", "every"):
        raise InvalidArgument(f"rolling() got emit={emit!r}; it can be 'batch' or 'every'")
    window = WholeKey(every_rows=1) if emit == "every" else WholeKey(every_batch=True)
    return GroupedStream(df, window, keys_of("rolling()", keys))
