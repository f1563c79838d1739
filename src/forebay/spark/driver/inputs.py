"""The input columns of aggregates: what Spark computes before pack, so that the engine sees few types."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from forebay.aggregates.bound import COUNTED, BoundAggregate
from forebay.aggregates.functions import Aggregate
from forebay.errors import InvalidArgument, UnsupportedType
from forebay.spark.driver.analysis import resolved_alike
from forebay.spark.driver.columns import column_of, folding, quoted, same_expression, text_of
from forebay.state.layout import NAMESAKE

_PLAIN = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
)
_AS_DOUBLE = {"median", "percentile", "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"}
_AS_DOUBLE |= {"approx_percentile", "kll_sketch_agg_double"}
_HASHED = {"hll_sketch_agg", "count_min_sketch"}
"""Functions that hash values as bytes, or as integers of 64 bits."""
_ADDED_UP = {"sum", "avg", "mean"}
_OF_ALL = {"count", "count_distinct"}
"""Functions that take ``*``."""
_ORDERED = {"min": 0, "max": 0, "min_by": 1, "max_by": 1, "all_max_by": 1}
"""Functions that compare values, and which of their arguments."""


class Inputs:
    """Collects the input columns of an operator's aggregates, each expression once.

    They are named by what they are, not by their places: state that was stored keeps its names when aggregates come and go.
    """

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._expressions: dict[str, Column] = {}
        self._kinds: dict[str, T.DataType] = {}
        self.columns: list[Column] = []
        self.types: dict[str, str] = {}
        self._alike: dict[str, list[str]] = {}
        """Names of expressions that Spark shows alike, or takes for the same name, the first one first."""
        self._folded = folding(df.sparkSession)

    def add(self, columns: Sequence[Column]) -> tuple[str, ...]:
        """The names of input columns for some expressions. They are compared as Spark does, not by their text alone."""
        return tuple(map(self._name_of, columns, self._kinds_of(columns)))

    def typed(self, names: Iterable[str]) -> dict[str, str]:
        """Input columns with their types, as the layout has them."""
        return {name: self.types[name] for name in names}

    def bind(self, aggregates: Sequence[Aggregate], results: Sequence[T.StructField]) -> tuple[BoundAggregate, ...]:
        """Aggregates bound to input columns; ``results`` are the columns that Spark would give for them."""
        arguments = [self._arguments(aggregate) for aggregate in aggregates]
        kinds = iter(self._kinds_of([column for each in arguments for column in each]))
        read: list[list[Column]] = []
        options: list[dict[str, Any]] = []
        common = {"ansi": self._ansi}
        for aggregate, result, columns in zip(aggregates, results, arguments, strict=True):
            of_each = [next(kinds) for _ in columns]
            _require_types(aggregate, result.name, of_each)
            read.append(_converted(aggregate.function, columns, of_each))
            options.append({**aggregate.options, **common, **self._settings(aggregate)})
        names = iter(self.add([column for each in read for column in each]))
        bound = []
        for aggregate, result, columns, settings in zip(aggregates, results, read, options, strict=True):
            inputs = tuple(next(names) for _ in columns)
            types = tuple(_arrow(self._kinds[name]) for name in inputs)
            bound.append(BoundAggregate(result.name, aggregate.function, inputs, types, _arrow(result.dataType), settings))
        return tuple(bound)

    def _kinds_of(self, columns: Sequence[Column]) -> list[T.DataType]:
        """The types of expressions, of all in one analysis: each analysis takes Spark milliseconds."""
        fields = self._df.select(*columns).schema.fields if columns else []
        if len(fields) != len(columns):  # one of them stands for several
            fields = [self._df.select(column).schema.fields[0] for column in columns]
        return [field.dataType for field in fields]

    def _name_of(self, column: Column, kind: T.DataType) -> str:
        text = text_of(column)
        require_supported(kind, text)
        name = f"a_{text if text.isidentifier() else hashlib.sha256(text.encode()).hexdigest()[:10]}"
        alike = self._alike.setdefault(self._folded(name), [])
        for other in alike:
            if same_expression(self._expressions[other], column):
                return other
        if alike:
            if resolved_alike(self._df, self._expressions[alike[0]], column):  # the first alone: names are in checkpoints
                return alike[0]
            name += f"{NAMESAKE}{len(self._expressions)}"
        alike.append(name)
        self._expressions[name], self._kinds[name] = column, kind
        self.columns.append(column.alias(name))
        self.types[name] = kind.simpleString()
        return name

    def _arguments(self, aggregate: Aggregate) -> list[Column]:
        """The arguments of an aggregate, without what stands for all columns."""
        name = aggregate.function
        arguments = [argument for argument in aggregate.arguments if not _is_star(argument)]
        if len(arguments) < len(aggregate.arguments) and name not in _OF_ALL:
            raise InvalidArgument(f"{name}('*') says nothing about which column; name one, or write count('*')")
        if name == "count_distinct" and len(arguments) < len(aggregate.arguments):
            arguments += map(quoted, self._df.columns)
            if COUNTED in aggregate.options and len(arguments) > 1:
                raise InvalidArgument("count_distinct('*', counted=True) takes one column; leave counted out for several")
        return list(map(column_of, arguments))

    def _settings(self, aggregate: Aggregate) -> dict[str, Any]:
        """What an aggregate needs beside the options that it was given."""
        if aggregate.function == "approx_count_distinct":
            return self._hyperloglog(aggregate.options["rsd"])
        if aggregate.function == "approx_percentile":
            return {"k": _size_of(aggregate.options["accuracy"])}
        return {}

    @property
    def _ansi(self) -> bool:
        return str(self._df.sparkSession.conf.get("spark.sql.ansi.enabled")).lower() == "true"

    def _hyperloglog(self, rsd: float) -> dict[str, Any]:
        """The precision, and the constants that Spark's own HyperLogLog++ uses for it."""
        from forebay.aggregates import hyperloglog  # imports polars, which a worker must not do early

        precision = hyperloglog.precision_of(rsd)
        jvm = self._df.sparkSession._jvm
        assert jvm is not None
        spark = getattr(jvm.org.apache.spark.sql.catalyst.util, "HyperLogLogPlusPlusHelper$")
        constants = getattr(spark, "MODULE$")
        known = precision - 4 < len(constants.THRESHOLDS())
        tables = hyperloglog.Tables(
            threshold=float(constants.THRESHOLDS()[precision - 4]) if known else -1.0,
            estimates=tuple(map(float, constants.RAW_ESTIMATE_DATA()[precision - 4])) if known else (),
            biases=tuple(map(float, constants.BIAS_DATA()[precision - 4])) if known else (),
            neighbours=int(constants.K()),
        )
        return {"precision": precision, "tables": tables}


def identity(keys: list[Column], kinds: list[T.DataType]) -> tuple[Column, Column]:
    """128 bits that identify a key, as two bigints. The first also decides its virtual node.

    They are two hashes of a sequence of values that no other key has. Keys that ``groupBy`` holds equal have equal ones.
    """
    values = [value for key, kind in zip(keys, kinds, strict=True) for value in _sequence(key, kind)]
    if not values:
        return F.lit(0).cast("long"), F.lit(0).cast("long")
    return F.xxhash64(*values), F.xxhash64(F.lit(_SECOND_HASH), *values)


_SECOND_HASH = "forebay"


def _sequence(value: Column, kind: T.DataType) -> list[Column]:
    """Values that together tell one value of a type from all others; Spark's hash leaves NULLs out."""
    if isinstance(kind, T.StructType):
        fields = [part for f in kind.fields for part in _sequence(value.getField(f.name), f.dataType)]
        return [value.isNull(), *fields]
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        size = F.when(value.isNotNull(), F.size(value))  # of NULL it is -1 or NULL, as settings say that may change
        return [value.isNull(), size, F.transform(value, lambda each: F.struct(*_sequence(each, element)))]
    return [value.isNull(), value]


def require_supported(kind: T.DataType, what: str) -> None:
    """`UnsupportedType` unless values of the type can be kept in state; ``what`` names the column in the message."""
    if isinstance(kind, T.ArrayType):
        require_supported(kind.elementType, what)
    elif isinstance(kind, T.StructType):
        if len({*kind.names}) < len(kind.names):
            raise UnsupportedType(f"{what} is a {kind.simpleString()}, with two fields of one name; rename one of them")
        for field in kind.fields:
            require_supported(field.dataType, what)
    elif isinstance(kind, T.StringType):
        if kind != T.StringType():
            raise UnsupportedType(
                f"{what} is a {kind.simpleString()}; only binary collation is supported. Use collate({what}, 'UTF8_BINARY')"
            )
    elif isinstance(kind, T.CharType | T.VarcharType):
        raise UnsupportedType(f"{what} is a {kind.simpleString()}; texts have no greatest length here, so write string")
    elif isinstance(kind, T.NullType):
        raise UnsupportedType(
            f"{what} has a part without a type (NULL, or an empty array); cast it to the type it is to have"
        )
    elif not isinstance(kind, _PLAIN) and kind.typeName() != "time":
        raise UnsupportedType(
            f"{what} is a {kind.simpleString()}, which forebay cannot keep in state; convert it first, for example with "
            "F.to_json, or drop it if it is not needed"
        )


def require_carried(kind: T.DataType, what: str) -> None:
    """`UnsupportedType` unless Python workers can be given values of the type, and give them back as they are."""
    try:
        _arrow(kind)
    except PySparkTypeError:
        raise UnsupportedType(
            f"{what} is a {kind.simpleString()}, which Spark cannot hand to Python workers; convert it first, or drop it"
        ) from None


def nullable_within(field: T.StructField) -> T.StructField:
    """A field whose nested fields and elements may be NULL: in a struct that is NULL as a whole, polars has them so."""
    return T.StructField(field.name, _nullable_within(field.dataType), field.nullable, field.metadata)


def _nullable_within(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_nullable_within(kind.elementType))
    if isinstance(kind, T.StructType):
        fields = (T.StructField(f.name, _nullable_within(f.dataType), metadata=f.metadata) for f in kind.fields)
        return T.StructType(list(fields))
    return kind


def _converted(function: str, columns: list[Column], kinds: list[T.DataType]) -> list[Column]:
    """The arguments of an aggregate as the engine takes them."""
    if function in _AS_DOUBLE:
        return [column.cast("double") for column in columns]
    if function in _ADDED_UP:
        return [_summand(columns[0], kinds[0], mean=function != "sum")]
    if function == "kll_sketch_agg_bigint" or (function in _HASHED and isinstance(kinds[0], T.IntegralType)):
        return [columns[0].cast("long")]
    if function == "approx_count_distinct":
        hashed = F.xxhash64(columns[0].cast(kinds[0]))  # the hash of a number goes by its type: so does the name
        return [F.when(columns[0].isNotNull(), hashed)]
    return columns


def _summand(column: Column, kind: T.DataType, *, mean: bool) -> Column:
    exact = isinstance(kind, T.DecimalType) or (isinstance(kind, T.IntegralType) and not mean)
    return column if exact else column.cast("double")


def _size_of(accuracy: int) -> int:
    """The size of a KLL sketch for an accuracy."""
    from forebay.aggregates import kll  # imports polars, which a worker must not do early

    return kll.k_of(accuracy)


def _is_star(argument: Column | str) -> bool:
    return isinstance(argument, str) and argument == "*"


def _arrow(kind: T.DataType) -> Any:
    return to_arrow_type(kind, timezone="UTC")


def _require_types(aggregate: Aggregate, text: str, kinds: list[T.DataType]) -> None:
    """Raise `UnsupportedType` if a function cannot have arguments of some types."""
    for kind in kinds:
        require_supported(kind, f"the argument of {text}")
    ordered = _ORDERED.get(aggregate.function)
    if ordered is not None and isinstance(kinds[ordered], T.ArrayType | T.StructType):
        instead = aggregate.function if ordered else f"{aggregate.function}_by"
        raise UnsupportedType(
            f"{text} would have to order {kinds[ordered].simpleString()} values. Write fb.{instead}(value, order), with "
            "the part of it that decides for order."
        )
    if COUNTED in aggregate.options and isinstance(kinds[0], T.ArrayType | T.StructType | T.MapType):
        raise UnsupportedType(f"{text} would have to count {kinds[0].simpleString()} values; leave counted out")
    if aggregate.function in _AS_DOUBLE | _ADDED_UP and not isinstance(kinds[0], T.NumericType | T.StringType):
        raise UnsupportedType(f"{text} is not supported over {kinds[0].simpleString()}; cast it to a number")
