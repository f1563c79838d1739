"""NEXMark's queries, as Beam defines them, the way a user of forebay writes them.

Each takes the streams that its parameters name, with a watermark on ``dateTime``, and gives a streaming DataFrame.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import forebay as fb
from forebay.spark.driver.assignments import SessionWindow, TimeWindow


def q0(bids: DataFrame) -> DataFrame:
    """Pass through: what the source and Spark alone cost."""
    return bids


def q1(bids: DataFrame) -> DataFrame:
    """Currency conversion: prices in euros."""
    return bids.withColumn("price", F.round(F.col("price") * 0.89).cast("long"))


def q2(bids: DataFrame) -> DataFrame:
    """Selection: bids for every 123rd auction."""
    return bids.where("auction % 123 = 0").select("auction", "price")


def q3(persons: DataFrame, auctions: DataFrame) -> DataFrame:
    """Local item suggestion: who sells in category 10 from three states? Spark's own join, its state unbounded."""
    sellers = persons.where("state in ('OR', 'ID', 'CA')").select(F.col("id").alias("seller"), "name", "city", "state")
    return auctions.where("category = 10").select("id", "seller").join(sellers, "seller").drop("seller")


def q4(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Average price by category of the auctions that closed in the last 10 seconds, every 5 seconds. RMW, then RMW."""
    closed = fb.window(F.window_time("session_window"), "10 seconds", "5 seconds")
    return fb.groupBy(q9(auctions, bids), closed, "category").agg(fb.avg("price").alias("price"))


def q5(bids: DataFrame) -> DataFrame:
    """Hot items: the auctions with the most bids in the last 10 seconds, every 5 seconds. RMW, then RMW."""
    counts = fb.groupBy(bids, fb.window("dateTime", "10 seconds", "5 seconds"), "auction").agg(fb.count("*").alias("bids"))
    hottest = fb.groupBy(counts, fb.window(F.window_time("window"), "5 seconds")).agg(
        fb.max("bids").alias("bids"), fb.all_max_by("auction", "bids").alias("auctions")
    )
    return hottest.select(_last_10_seconds(), F.explode("auctions").alias("auction"), "bids")


def q5_append(bids: DataFrame) -> DataFrame:
    """Q5 that keeps all counts of a window until it has closed. RMW, then AAR."""
    counts = fb.groupBy(bids, fb.window("dateTime", "10 seconds", "5 seconds"), "auction").agg(fb.count("*").alias("bids"))
    listed = fb.groupBy(counts, fb.window(F.window_time("window"), "5 seconds")).agg(
        fb.max("bids").alias("most"), fb.collect_list(F.struct("auction", "bids")).alias("counts")
    )
    return listed.select(_last_10_seconds(), F.inline(F.filter("counts", lambda each: each.bids == F.col("most"))))


def q6(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Average selling price of each seller's last 10 closed auctions, from the 10th on. RMW, then RMW."""
    sold = q9(auctions, bids)
    return fb.groupBy(sold, fb.count_window(10, 1), "seller").agg(fb.avg("price").alias("price"))


def q7(bids: DataFrame) -> DataFrame:
    """Highest bids: every bid that ties the highest price of its 10 seconds. AAR."""
    listed = fb.groupBy(bids, fb.window("dateTime", "10 seconds")).agg(
        fb.max("price").alias("highest"), fb.collect_list(_bid()).alias("bids")
    )
    return listed.select("window", F.inline(F.filter("bids", lambda bid: bid.price == F.col("highest"))))


def q7_ties(bids: DataFrame) -> DataFrame:
    """Q7 that keeps no bids but those that tie. RMW."""
    best = fb.groupBy(bids, fb.window("dateTime", "10 seconds")).agg(fb.all_max_by(_bid(), "price").alias("bids"))
    return best.select("window", F.inline("bids"))


def q7_session(bids: DataFrame) -> DataFrame:
    """Highest bids of each bidder's sessions. AUR."""
    listed = fb.groupBy(bids, fb.session_window("dateTime", "10 seconds"), "bidder").agg(
        fb.max("price").alias("highest"), fb.collect_list(_bid().dropFields("bidder")).alias("bids")
    )
    highest = F.filter("bids", lambda bid: bid.price == F.col("highest"))
    return listed.select("session_window", "bidder", F.inline(highest))


def q8(persons: DataFrame, auctions: DataFrame) -> DataFrame:
    """Monitor new users: who opened auctions in the 10 seconds in which they registered? AAR."""
    registered = persons.select("dateTime", F.col("id").alias("person"), "name")
    opened = auctions.select("dateTime", F.col("seller").alias("person"), "reserve")
    both = fb.join(registered, opened, on="person", window=fb.window("dateTime", "10 seconds"))
    return both.select("window", "person", "name", "reserve")


def q9(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Winning bids: the highest bid for an auction while it was open, if it reached the reserve. RMW.

    The session of an auction is as long as it is open, so the bids in that time fall into it; others are alone.
    """
    open_for = F.unix_micros("expires") - F.unix_micros("dateTime")
    about = ("category", "seller", "reserve")
    opened = auctions.select(
        "dateTime", _gap(open_for - 1), F.col("id").alias("auction"), *about, *_missing("bidder", "price")
    )
    made = bids.select("dateTime", _gap(F.lit(1)), "auction", *_missing(*about), "bidder", "price")
    best = fb.groupBy(opened.union(made), fb.session_window("dateTime", F.col("gap")), "auction").agg(
        *(fb.max(name).alias(name) for name in (*about, "price")),
        fb.max_by("bidder", "price").alias("bidder"),
    )
    return best.where("price >= reserve").drop("reserve")


def q10(bids: DataFrame) -> DataFrame:
    """Log to the file system: bids with the hour to partition files by; write it with ``partitionBy("hour")``."""
    return bids.withColumn("hour", F.date_format("dateTime", "yyyy-MM-dd-HH"))


def q11(bids: DataFrame) -> DataFrame:
    """User sessions: how many bids did a bidder make before pausing for 10 seconds? RMW."""
    return fb.groupBy(bids, fb.session_window("dateTime", "10 seconds"), "bidder").agg(fb.count("*").alias("bids"))


def q11_median(bids: DataFrame) -> DataFrame:
    """The median price of a bidder's session. AUR."""
    return fb.groupBy(bids, fb.session_window("dateTime", "10 seconds"), "bidder").agg(fb.median("price").alias("median"))


def q12(bids: DataFrame) -> DataFrame:
    """How many bids did a bidder make within 10 seconds by the wall clock? RMW. Runs until it is stopped."""
    return fb.groupBy(bids, fb.global_window("10 seconds", accumulate=False), "bidder").agg(fb.count("*").alias("bids"))


def nbqx(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Auctions with their bids in sessions of four gaps and in 4 hours, five joins at once. AUR, and AAR (Rhino)."""
    opened = auctions.select("dateTime", F.col("id").alias("auction"), "seller")
    made = bids.select("dateTime", "auction", "bidder", "price")
    windows: list[tuple[str, str, SessionWindow | TimeWindow]] = [
        (f"{gap} minutes", "session_window", fb.session_window("dateTime", f"{gap} minutes")) for gap in (30, 60, 90, 120)
    ]
    windows.append(("4 hours", "window", fb.window("dateTime", "4 hours")))
    joined = [
        fb.join(opened, made, on="auction", window=window).select(
            F.lit(name).alias("windows"), F.col(column).alias("window"), "auction", "seller", "bidder", "price"
        )
        for name, column, window in windows
    ]
    return functools.reduce(DataFrame.union, joined)


QUERIES: dict[str, Callable[..., DataFrame]] = {
    query.__name__.replace("_", "-"): query
    for query in (q0, q1, q2, q3, q4, q5, q5_append, q6, q7, q7_ties, q7_session, q8, q9, q10, q11, q11_median, q12, nbqx)
}
"""By the names that the command line knows."""


def _bid() -> Column:
    return F.struct("auction", "bidder", "price")


def _gap(microseconds: Column) -> Column:
    return F.make_interval(secs=(microseconds / 1_000_000).cast("decimal(18, 6)")).alias("gap")


def _missing(*names: str) -> list[Column]:
    return [F.lit(None).cast("long").alias(name) for name in names]


def _last_10_seconds() -> Column:
    """The sliding window of a row that came out of it, from the 5 seconds in which it ended."""
    end = F.col("window.end")
    return F.struct((end - F.expr("interval 10 seconds")).alias("start"), end.alias("end")).alias("window")
