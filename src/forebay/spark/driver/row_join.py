"""What interval joins and continuous joins have in common: two streams to an operator whose results are pairs of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.access_patterns import Choice, Pattern
from forebay.engine.window_join import WindowJoin
from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import analysis
from forebay.spark.driver.columns import interval, lasting, quoted, text_of
from forebay.spark.driver.conf import ready
from forebay.spark.driver.inputs import Inputs, nullable_within, require_supported
from forebay.spark.driver.planner import Call, Key, Windowing, planned
from forebay.spark.driver.sides import SIDE, JoinType, TimeColumn, times_of, united
from forebay.spark.driver.sides import TIME as UNITED_TIME
from forebay.spark.driver.vehicle import run
from forebay.windows import Windows

TimeColumns = TimeColumn | tuple[Column | str, Column | str]

EVENT_TIME = "event_time"
"""The column of results that says when a pair was complete."""


@dataclass(frozen=True)
class RowJoin:
    """Two sides to be joined on keys that `require_joinable` has seen.

    ``time_column`` is that of both sides, or of each; None for the ones with the watermarks.
    """

    left: DataFrame
    right: DataFrame
    keys: Sequence[str]
    how: JoinType
    suffix: str
    time_column: TimeColumns

    def run(
        self,
        windows: Callable[[Mapping[str, str]], Windows],
        kind: str,
        text: str,
        reason: str,
        *,
        waits: tuple[int, int] = (0, 0),
        marks: Mapping[str, tuple[Column, Column]] | None = None,
    ) -> DataFrame:
        """The results of the operator.

        Parameters
        ----------
        windows : callable
            Gives the windows of the plan, from the packed columns of the marks.
        kind, text, reason : str
            The kind of join, what the layout says of the windows, and why the pattern is AUR.
        waits : pair of int
            For how many microseconds after its time a row of either side waits for partners.
        marks : mapping
            More columns of either side that are not part of the result.
        """
        times = self._times()
        conf = ready(self.left)
        with analysis():
            both, sides = united(self.left, self.right, self.keys, times, self.how, self.suffix, (EVENT_TIME,), marks)
        key_columns = [F.col(quoted(key)) for key in self.keys]
        key_fields = [nullable_within(field) for field in both.select(*key_columns).schema.fields]
        for field in key_fields:
            require_supported(field.dataType, f"the key {field.name}")
        inputs = Inputs(both)
        side, *names = inputs.add([F.col(name) for name in (SIDE, *(marks or ()), *sides.columns)])
        marked = dict(zip(marks or (), names, strict=False))
        columns = dict(zip(sides.columns, names[len(marked) :], strict=True))
        left, right = (tuple(columns[name] for name, _ in each) for each in (sides.left, sides.right))
        time = both.schema[UNITED_TIME]
        wait = F.when(F.col(SIDE), interval(waits[1])).otherwise(interval(waits[0]))
        shown = f"{self.how} join, {text} of {' and '.join(dict.fromkeys(map(text_of, times)))}"
        call = Call(
            windowing=Windowing(windows(marked), kind, shown),
            keys=[
                Key(key, column, field.dataType)
                for key, column, field in zip(self.keys, key_columns, key_fields, strict=True)
            ],
            times=lasting(F.col(UNITED_TIME), wait),
            packed=inputs.columns,
            aggregation=WindowJoin(self.how, side, left, right),
            reads={
                read: inputs.typed([side, *marked.values(), *(columns[each] for each in held)])
                for read, held in sides.reads.items()
            },
            schema=T.StructType(
                [T.StructField(EVENT_TIME, time.dataType, metadata=time.metadata), *key_fields, *sides.fields]
            ),
            choice=Choice(Pattern.AUR, reason),
            rows=sides.rows(self.keys),
        )
        return run(both, planned(both, conf, call), conf)

    def _times(self) -> tuple[Column, Column]:
        given = self.time_column
        if isinstance(given, tuple | list) and len(given) != 2:
            raise InvalidArgument(f"timeColumn is {given!r}; give one for both sides, or a pair")
        first, second = given if isinstance(given, tuple | list) else (given, given)
        return times_of(self.left, self.right, first, second)
