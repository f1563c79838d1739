"""State at rest as a data source of Spark: ``spark.read.format("forebay-state")``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from forebay.errors import InvalidArgument
from forebay.spark.driver.conf import require_forebay_in_workers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def registerStateSource(spark: SparkSession) -> None:
    """Make ``format("forebay-state")`` known to a session: the state of a query, running or not, which is left as it is.

    A row is one that the state holds: an input row, or a partial aggregate. Columns are ``vnode``, the bounds of the window
    (``start`` of the slice and no ``end`` where all keys share windows; row numbers for count windows), the keys, and what
    is stored of the aggregates' inputs. Its options are

    * ``path``: the checkpoint location, or the query's directory under ``spark.forebay.stateDirectory``,
    * ``batchId``: the micro-batch after which state is shown, the newest unless set (``spark.forebay.retainBatches``),
    * ``operator``: which operator of the query, as ``forebay state list`` names them, if there are several.

    Examples
    --------
    >>> import tempfile
    >>> import forebay as fb
    >>> fb.registerStateSource(spark)
    >>> checkpoint = tempfile.mkdtemp()
    >>> rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1)
    >>> ticks = rates.option("advanceMillisPerBatch", 1000).load().withWatermark("timestamp", "1 minute")
    >>> counts = fb.groupBy(ticks, fb.window("timestamp", "1 hour"), (ticks.value % 2).alias("odd")).agg(fb.count("*"))
    >>> query = counts.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    >>> while not query.lastProgress:
    ...     _ = query.awaitTermination(0.1)
    >>> query.stop()
    >>> state = spark.read.format("forebay-state").option("batchId", 0).load(checkpoint)
    >>> state.orderBy("odd").select("odd", "rows").show()
    +---+----+
    |odd|rows|
    +---+----+
    |  0|   5|
    |  1|   5|
    +---+----+
    <BLANKLINE>
    """
    require_forebay_in_workers(spark)
    spark.dataSource.register(StateSource)


class StateSource(DataSource):
    """See `registerStateSource`."""

    @classmethod
    def name(cls) -> str:
        return "forebay-state"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from forebay.state.inspection import one, opened

        with opened(_path(self.options)) as operators:
            operator = one(operators, self.options.get("operator"))
            columns = operator.columns(operator.chosen(_batch(self.options)))
        if columns is None:
            raise InvalidArgument(f"the state at {_path(self.options)} has no rows, so its columns are not known")
        return from_arrow_schema(columns.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return StateReader({**self.options, "path": _path(self.options)}, schema)


class StateReader(DataSourceReader):
    """Reads the virtual nodes of an operator, each in a task of its own, and of each the version that is there now."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        from forebay.state.inspection import one, opened

        with opened(self._options["path"]) as operators:
            chosen = one(operators, self._options.get("operator")).chosen(_batch(self._options))
        return [InputPartition((instance.name, str(version))) for instance, version in chosen]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from forebay.engine.stored_form import StoredForm
        from forebay.state.inspection import one, opened
        from forebay.store.filenames import Version

        name, version = partition.value
        target = to_arrow_schema(self._schema, timezone="UTC")
        form = StoredForm(target)
        with opened(self._options["path"]) as operators:
            operator = one(operators, self._options.get("operator"))
            for batch in operator.rows(operator.instance(name), Version.parse(version)):
                yield form.of(batch.cast(pa.schema([target.field(name) for name in batch.schema.names])))


def _path(options: Mapping[str, str]) -> str:
    if "path" not in options:
        raise InvalidArgument('forebay-state needs a path: .option("path", the checkpoint location of the query)')
    path = options["path"]
    return path if ":" in path else str(Path(path).absolute())


def _batch(options: Mapping[str, str]) -> int | None:
    text = next((value for name, value in options.items() if name.lower() == "batchid"), None)
    if text is not None and not text.isdigit():
        raise InvalidArgument(f"batchId is {text!r}; it must be the number of a micro-batch")
    return int(text) if text is not None else None
