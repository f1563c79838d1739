"""What interval joins and continuous joins have in common: two streams to an operator whose results are pairs of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import InvalidArgument
from forebay.joins import WindowJoin
from forebay.patterns import Choice, Pattern
from forebay.spark.binding import BoundOperator, analysis, arrow_schema, time_of
from forebay.spark.groupby import ready, run
from forebay.spark.inputs import Inputs, identity, nullable_within, require_supported
from forebay.spark.join import JoinType, require_same_type
from forebay.spark.sides import SIDE, united
from forebay.spark.sides import TIME as UNITED_TIME
from forebay.spark.timewindows import interval, quoted, text_of
from forebay.windowing import WindowPlan
from forebay.windows import END, HIGH, LOW, TIME, Windows

TimeColumns = Column | str | tuple[Column | str, Column | str] | None

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
        text, reason : str
            What the layout says of the windows, and why the pattern is AUR.
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
        high, low = identity(key_columns, [field.dataType for field in key_fields])
        inputs = Inputs(both)
        side = inputs.add(F.col(SIDE))
        marked = {name: inputs.add(F.col(name)) for name in marks or ()}
        columns = {name: inputs.add(F.col(name)) for name in sides.columns}
        placed = [tuple(columns[name] for name, _ in each) for each in (sides.left, sides.right)]
        names = tuple(f"k{place}" for place in range(len(self.keys)))
        kept = [*(column.alias(name) for name, column in zip(names, key_columns, strict=True)), *inputs.columns]
        time = both.schema[UNITED_TIME]
        schema = T.StructType([T.StructField(EVENT_TIME, time.dataType, metadata=time.metadata), *key_fields, *sides.fields])
        wait = F.when(F.col(SIDE), interval(waits[1])).otherwise(interval(waits[0]))
        projection = {TIME: F.col(UNITED_TIME), HIGH: high, LOW: low, END: F.col(UNITED_TIME) + wait}
        plan = WindowPlan(
            windows(marked),
            arrow_schema(both.select(*kept).schema),
            names,
            WindowJoin(self.how, side, placed[0], placed[1]),
            Pattern.AUR,
            arrow_schema(schema),
            conf.options,
        )
        layout = {
            "window": f"{self.how} join, {text} of {' and '.join(dict.fromkeys(map(text_of, times)))}",
            "keys": [f"{key} {field.dataType.simpleString()}" for key, field in zip(self.keys, key_fields, strict=True)],
            "aggregates": {
                read: {name: inputs.types[name] for name in (side, *marked.values(), *(columns[each] for each in held))}
                for read, held in sides.reads.items()
            },
            "pattern": Pattern.AUR.name,
            "instancesPerPartition": conf.instances_per_partition,
        }
        shown = [column.alias(name) for name, column in projection.items()]
        choice = Choice(Pattern.AUR, reason)
        return run(both, BoundOperator([*shown, *kept], plan, schema, layout, choice, sides.rows(self.keys)), conf)

    def _times(self) -> tuple[Column, Column]:
        given = self.time_column
        if isinstance(given, tuple | list) and len(given) != 2:
            raise InvalidArgument(f"timeColumn is {given!r}; give one for both sides, or a pair")
        first, second = given if isinstance(given, tuple | list) else (given, given)
        times = time_of(self.left, first), time_of(self.right, second)
        sides = zip((self.left, self.right), times, strict=True)
        require_same_type("the time", *(df.select(time.alias("time")) for df, time in sides))
        return times
