"""Card fraud, found transaction by transaction: five patterns over the last rows or the last minutes of each card.

One operator has all five patterns, so each transaction is stored once.

The transactions are generated, with the same seed each time, and fraud is planted among them. They arrive up to some minutes
late, in files that are micro-batches. After each transaction of a card, aggregates of what came before it say whether it
looks like fraud. Run it with ``make demo-fraud``; everything it writes is in ``demo/fraud``.
"""

import shutil
import time
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, DayLocator, HourLocator
from matplotlib.figure import Figure
from matplotlib.ticker import Locator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from rich.console import Console
from rich.table import Table

import forebay as fb
from quiet import start_spark

DEMO = Path(__file__).resolve().parents[1] / "demo" / "fraud"
SOURCE = DEMO / "transactions"
SCHEMA = "id long, time timestamp, card int, merchant int, x double, y double, amount double"
FILES, SEED = 6, 7

CARDS, MERCHANTS, DAYS, A_DAY = 1_000, 4_000, 6, 6
START = pd.Timestamp("2024-05-06", tz="UTC")
EPISODES = 30
"""So often each kind of fraud is planted."""

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Pattern:
    """What a kind of fraud looks like: aggregates after each transaction of a card, and when they are suspicious.

    ``keys`` are those that the pattern has beside the card.
    """

    keys: tuple[str, ...]
    window: Any
    aggregates: tuple[Any, ...]
    condition: str


AMOUNT = fb.current("amount").alias("amount")
PATTERNS = {
    "card testing": Pattern(  # a stolen card is tried with small payments
        (),
        fb.preceding("time", "10 minutes"),
        (fb.count("*").alias("n"), fb.max("amount").alias("largest")),
        "n >= 5 and largest < 5",
    ),
    "out of character": Pattern(  # a payment far above what this card is used for
        (),
        fb.preceding("time", rows=50),
        (AMOUNT, fb.median("amount").alias("usual"), fb.count("*").alias("n")),
        "n >= 10 and amount > 12 * usual",
    ),
    "two places at once": Pattern(  # no airplane is so fast
        (),
        fb.preceding("time", rows=2),
        (
            *(fb.first(name).alias(f"{name}_before") for name in ("time", "x", "y")),
            *(fb.current(name).alias(name) for name in ("x", "y")),
        ),
        "hypot(x - x_before, y - y_before) > 50 + 1000 / 3600 * timestampdiff(SECOND, time_before, event_time)",
    ),
    "shopping spree": Pattern(  # as much as possible before the card is blocked
        (),
        fb.preceding("time", "1 hour"),
        (fb.count_distinct("merchant").alias("merchants"), fb.sum("amount").alias("total")),
        "merchants >= 5 and total > 800",
    ),
    "below the limit": Pattern(  # a merchant takes amounts that nobody asks a PIN for
        ("merchant",),
        fb.preceding("time", "2 hours"),
        (fb.count("*").alias("n"), fb.min("amount").alias("least"), fb.max("amount").alias("most")),
        "n >= 3 and least >= 40 and most <= 50",
    ),
}
COLOURS = dict(zip(PATTERNS, ("#1f6fb2", "#e07a1f", "#2a9d6f", "#b23a78", "#6b5fb2"), strict=True))


def main() -> None:
    shutil.rmtree(DEMO, ignore_errors=True)
    transactions = generated()
    write(transactions)
    spark = start_spark("fraud", DEMO / "spark.log")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(SOURCE))
    stream = stream.withWatermark("time", "10 minutes")
    query = run(stream)
    until = pd.Timestamp(query.lastProgress.eventTime["watermark"])
    alarms = spark.read.parquet(str(DEMO / "alarms")).toPandas()
    spark.stop()

    judged = alarms[["pattern", "id"]].merge(transactions, on="id")
    judged["right"] = judged["pattern"] == judged["fraud"]
    planted = transactions[transactions["fraud"].notna() & (transactions["time"] <= until)]
    show(judged, planted)
    draw(judged, transactions, DEMO / "fraud.png")
    console.print(f"[bold]All alarms as a picture: {DEMO / 'fraud.png'}")


# the transactions ------------------------------------------------------------------------------------------------------


def generated() -> pd.DataFrame:
    """All transactions in the order of their times: what cards are used for, and the fraud that is planted."""
    chance = np.random.default_rng(SEED)
    cities = chance.uniform(0, 4000, (40, 2))
    home = chance.integers(0, len(cities), CARDS)
    usual = chance.lognormal(3, 0.4, CARDS)
    near = np.argsort(chance.random((len(cities), MERCHANTS // len(cities))), axis=1)  # merchants of a city

    rows = CARDS * DAYS * A_DAY
    card = chance.integers(0, CARDS, rows)
    day, hour = chance.integers(0, DAYS, rows), np.clip(chance.normal(14, 4, rows), 0, 23.99)
    merchant = home[card] * (MERCHANTS // len(cities)) + near[home[card], chance.integers(0, near.shape[1], rows)]
    normal = pd.DataFrame(
        {
            "time": (day * 24 + hour) * 3600,
            "card": card,
            "merchant": merchant,
            "amount": usual[card] * chance.lognormal(0, 0.6, rows),
            "fraud": None,
            "episode": -1,
        }
    )
    dear = chance.random(rows) < 0.0005  # a new refrigerator is no fraud
    normal.loc[dear, "amount"] *= 15

    episodes = [fraud(chance, name, number, usual) for name in PATTERNS for number in range(EPISODES)]
    found = pd.concat([normal, *episodes], ignore_index=True).sort_values("time", kind="stable", ignore_index=True)
    places = cities[np.clip(found["merchant"].to_numpy() // (MERCHANTS // len(cities)), 0, len(cities) - 1)]
    elsewhere = found["merchant"].to_numpy() >= MERCHANTS  # merchants of fraudsters are on the network: at the card's home
    places[elsewhere] = cities[home[found["card"].to_numpy()[elsewhere]]]
    places += chance.normal(0, 5, places.shape)
    found["x"], found["y"] = places.T
    found["amount"] = found["amount"].round(2)
    found["time"] = START + pd.to_timedelta((found["time"] * 1000).round(), unit="ms")
    found["id"] = np.arange(len(found))
    return found


def fraud(chance: np.random.Generator, name: str, number: int, usual: np.ndarray) -> pd.DataFrame:
    """One episode of a kind of fraud: some transactions of a card."""
    card = int(chance.integers(0, CARDS))
    begin = chance.uniform(2, DAYS - 0.2) * 86400
    far, online = chance.integers(0, MERCHANTS), MERCHANTS + int(chance.integers(0, 50))
    if name == "card testing":
        amounts, every, merchants = chance.uniform(0.5, 4, 7), 60, np.full(7, online)
    elif name == "out of character":
        amounts, every, merchants = usual[card] * chance.uniform(13, 25, 1), 1, np.full(1, online)
    elif name == "two places at once":
        amounts, every, merchants = usual[card] * chance.lognormal(0, 0.5, 2), 900, np.array([online, far])
    elif name == "shopping spree":
        amounts, every = chance.uniform(80, 11 * usual[card], 9), 300
        merchants = MERCHANTS + chance.choice(50, 9, replace=False)
    else:
        amounts, every, merchants = chance.uniform(41, 49.5, 5), 1200, np.full(5, online)
    times = begin + np.cumsum(chance.uniform(0.5, 1.5, len(amounts)) * every)
    told = {"fraud": name, "episode": list(PATTERNS).index(name) * EPISODES + number}
    return pd.DataFrame({"time": times, "card": card, "merchant": merchants, "amount": amounts, **told})


def write(transactions: pd.DataFrame) -> None:
    """Write them as parquet files in the order in which they arrive, up to nine minutes late."""
    chance = np.random.default_rng(SEED)
    minutes = np.minimum(chance.exponential(1, len(transactions)), 9)
    arrival = (transactions["time"] + pd.to_timedelta(minutes, unit="min")).argsort(kind="stable")
    SOURCE.mkdir(parents=True)
    columns = [column.split()[0] for column in SCHEMA.split(", ")]
    for number, part in enumerate(np.array_split(arrival.to_numpy(), FILES)):
        rows = transactions.iloc[part][columns].astype({"card": "int32", "merchant": "int32"})
        rows.to_parquet(SOURCE / f"{number:02}.parquet", coerce_timestamps="us", index=False)
    planted = int(transactions["fraud"].notna().sum())
    console.print(f"{len(transactions):,} transactions of {CARDS:,} cards in {DAYS} days, {planted:,} of them fraud.")
    console.print(f"{FILES} files, each a micro-batch. Spark's log is demo/fraud/spark.log.\n")


# the query -------------------------------------------------------------------------------------------------------------


def run(transactions: DataFrame) -> StreamingQuery:
    shared = fb.patterns(transactions, "card")
    for name, each in PATTERNS.items():
        aggregates = fb.current("id").alias("id"), *each.aggregates, fb.when(each.condition)
        shared = shared.add(name, each.window, *aggregates, keys=each.keys)

    def let_through(results: DataFrame, _: int) -> None:
        """Write the results of a micro-batch that are suspicious, as one table."""
        results.persist()
        alarms = [shared.of(name, results).select(F.lit(name).alias("pattern"), "event_time", "id") for name in PATTERNS]
        reduce(DataFrame.union, alarms).write.mode("append").parquet(str(DEMO / "alarms"))
        results.unpersist()

    fb.explain(shared.results())
    began = time.perf_counter()
    with console.status("five patterns over the stream"):
        query = (
            shared.results()
            .writeStream.foreachBatch(let_through)
            .option("checkpointLocation", str(DEMO / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    state = fb.progress(query)
    console.print(
        f"\n{state.rowsIn:,} transactions taken by {len(PATTERNS)} patterns in {time.perf_counter() - began:.0f} s, "
        f"{state.rowsLate:,} of them late; {state.rowsOut:,} results, of which the alarms were let through"
    )
    return query


# what was found --------------------------------------------------------------------------------------------------------


def show(judged: pd.DataFrame, planted: pd.DataFrame) -> None:
    """Episodes that were found of those that were planted, and alarms that were right of those that were given."""
    table = Table(title="What was found", title_justify="left")
    table.add_column("pattern")
    for name in ("episodes", "found", "recall", "alarms", "right", "precision"):
        table.add_column(name, justify="right")
    for name in PATTERNS:
        alarms = judged[judged["pattern"] == name]
        there = planted.loc[planted["fraud"] == name, "episode"].nunique()
        found, right = alarms.loc[alarms["right"], "episode"].nunique(), int(alarms["right"].sum())
        shares = found / max(1, there), right / max(1, len(alarms))
        table.add_row(name, f"{there}", f"{found}", f"{shares[0]:.0%}", f"{len(alarms)}", f"{right}", f"{shares[1]:.0%}")
    console.print(table, "")


def draw(judged: pd.DataFrame, transactions: pd.DataFrame, path: Path) -> None:
    """All alarms of the days and, below, one card for each pattern on the day of its fraud."""
    figure = Figure(figsize=(14, 9.5), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.08)
    week, *cards = figure.subplot_mosaic([["week"] * 5, list("abcde")], height_ratios=[1.2, 1]).values()
    title = {"loc": "left", "weight": "bold", "fontsize": 15}
    for row, (name, colour) in enumerate(COLOURS.items()):
        there = transactions.loc[transactions["fraud"] == name, "time"]
        week.plot(there, np.full(len(there), row), "|", color="#bbbbbb", markersize=34, markeredgewidth=1.5)
        for right, marker in ((True, "o"), (False, "x")):
            alarms = judged.loc[(judged["pattern"] == name) & (judged["right"] == right), "time"]
            week.plot(alarms, np.full(len(alarms), row), marker, color=colour if right else "#111111", markersize=6)
    week.set_yticks(range(len(PATTERNS)), PATTERNS)
    week.invert_yaxis()
    week.set_title("Alarms: dots are right, crosses are not; grey lines are the fraud that was planted", **title)
    label(week, DayLocator(), "%a %d %b")
    for axes, name in zip(cards, PATTERNS, strict=True):
        draw_card(axes, name, judged, transactions)
    figure.savefig(path, dpi=110)


def around(one: Any, transactions: pd.DataFrame) -> tuple[Any, pd.DataFrame]:
    """A transaction, and those of its card in the hours before and after it."""
    of_card = transactions[transactions["card"] == one.card]
    return one, of_card[(of_card["time"] - one.time).abs() < pd.Timedelta(hours=5)]


def draw_card(axes: Axes, name: str, judged: pd.DataFrame, transactions: pd.DataFrame) -> None:
    """The transactions of one card around an episode of fraud that was found."""
    right = judged[(judged["pattern"] == name) & judged["right"]]
    if right.empty:
        axes.set_title(f"{name}: none found", loc="left")
        return
    candidates = (around(row, transactions) for row in right.drop_duplicates("episode").itertuples())
    one, near = max(candidates, key=lambda candidate: (candidate[1]["fraud"].nunique() == 1, len(candidate[1])))
    alarms = right[right["episode"] == one.episode]
    by_place = name == "two places at once"
    height = (lambda rows: np.hypot(rows["x"] - one.x, rows["y"] - one.y)) if by_place else lambda rows: rows["amount"]
    normal, other = near[near["fraud"].isna()], near[near["fraud"].notna()]
    axes.plot(normal["time"], height(normal), "o", color="#999999", markersize=5)
    axes.plot(other["time"], height(other), "o", color=COLOURS[name], markersize=5)
    axes.plot(alarms["time"], height(alarms), "o", color=COLOURS[name], markersize=13, fillstyle="none", markeredgewidth=1.5)
    if not by_place:
        axes.set_yscale("log")
        axes.set_ylim(0.3, 3000)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(f"{name}\ncard {one.card}, {'distance in km' if by_place else 'amounts'}", loc="left", fontsize=11)
    axes.set_xlim(one.time - pd.Timedelta(hours=5), one.time + pd.Timedelta(hours=5))
    label(axes, HourLocator(interval=4), "%H:%M")


def label(axes: Axes, ticks: Locator, text: str) -> None:
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(DateFormatter(text))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


if __name__ == "__main__":
    main()
