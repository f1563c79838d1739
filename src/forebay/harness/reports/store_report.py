"""What a report says of stores: the paper's figures 11 to 14 on what a comparison has found."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from forebay.errors import InvalidArgument
from forebay.harness.comparison import CAPTURED, GENERATED, VOLATILE, Comparison, table
from forebay.harness.reports.page import Report, Section

Measures = tuple[tuple[str, str], ...]
"""Columns of runs, and what they are called in figures."""

MEASURES: Measures = (("throughput", "accesses per second"), ("p999", "p99.9 of latency, microseconds"))
_OF_BATCHES: Measures = (MEASURES[0], ("p999", "p99.9 of the latency of batches, microseconds"))
OURS = "forebay-"
_STRETCHES = 60
_TOGETHER = ("operator", "beside", "store", "throughput", "p999")


def summarized(rows: pl.DataFrame) -> pl.DataFrame:
    """The median of all rounds, with the least and the most of what the figures show.

    Examples
    --------
    >>> from forebay.harness.comparison import Row
    >>> rows = [Row("a", "w", "generated", "dict", number, throughput=each) for number, each in enumerate((9.0, 5.0, 7.0))]
    >>> summarized(table(rows)).select("rounds", "throughput", "throughput_least", "throughput_most").row(0)
    (3, 7.0, 5.0, 9.0)
    """
    spread = [
        getattr(pl.col(measure), how)().alias(f"{measure}_{name}")
        for measure, _ in MEASURES
        for how, name in (("min", "least"), ("max", "most"))
    ]
    medians = ["throughput", "p50", "p99", "p999", "most", "memory_mb", "disk_mb"]
    return rows.group_by("stream", "workload", "kind", "store", maintain_order=True).agg(
        pl.len().alias("rounds"),
        pl.col("accesses").max(),
        pl.col("whole").all(),
        *(pl.col(name).median() for name in medians),
        *spread,
        pl.col("why").max(),
    )


def store_report(comparison: Comparison, facts: dict[str, str], planned: int, concurrent: pl.DataFrame | None) -> Report:
    """The report of a comparison, or of as much of it as there is.

    Parameters
    ----------
    comparison : Comparison
        What was found.
    facts : dict
        On what machine and with what versions.
    planned : int
        How many runs there were to be, for reports of comparisons that were interrupted.
    concurrent : polars.DataFrame or None
        What operators on one store give (figure 14), see `read_concurrent`.
    """
    rows = table(comparison.rows)
    known = summarized(rows)
    report = Report("Stores for streaming state", facts)
    if comparison.interrupted:
        report.notes.append(f"Ended from the keyboard after {rows.height} of {planned} runs: what follows is of those.")
    measures = _OF_BATCHES if comparison.batch_rows else MEASURES
    report.add(_about(comparison, known))
    for stream in known.filter(pl.col("stream") != "YCSB")["stream"].unique(maintain_order=True):
        _workloads(report, known.filter((pl.col("stream") == stream) & (pl.col("kind") == GENERATED)), stream, measures)
        _sizes(report, pl.DataFrame(comparison.samples), stream)
    _contrast(report, known, measures)
    core = known.filter(pl.col("stream") == "YCSB")
    for measure, title in measures if core.height else ():
        _figure(report, core, f"figure-12-{measure}", f"Figure 12: YCSB, {title}", measure, "YCSB's core workloads.")
    if concurrent is not None:
        _concurrent(report, concurrent)
    _refused(report, known)
    what = "batches" if comparison.batch_rows else "each operation"
    latencies = pl.DataFrame(comparison.latencies)
    report.add(Section("latencies", f"Latencies of {what}", "Percentiles of each run in microseconds.", table=latencies))
    report.add(Section("runs", "All runs", "A row for each run; times are microseconds.", table=rows))
    return report


def read_concurrent(path: Path) -> pl.DataFrame:
    """The figures of operators that share a store, for figure 14.

    They are a CSV file with the columns ``operator``, ``beside`` (``alone``, or what is beside it), ``store``,
    ``throughput`` and ``p999`` in microseconds.
    """
    try:
        frame = pl.read_csv(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InvalidArgument(f"{path} cannot be read as a CSV file: {error}") from None
    missing = [name for name in _TOGETHER if name not in frame.columns]
    if missing:
        raise InvalidArgument(f"{path} has no column {', '.join(missing)}; figure 14 needs {', '.join(_TOGETHER)}")
    return frame.with_columns(pl.col("throughput", "p999").cast(pl.Float64))


def standing(known: pl.DataFrame) -> pl.DataFrame:
    """Of each workload the fastest of forebay's stores beside the fastest other one that keeps state on disk, and RocksDB.

    Examples
    --------
    >>> from forebay.harness.comparison import Row
    >>> lmdb = Row("a", "aggregation", "generated", "lmdb", 0, throughput=9.0)
    >>> ours = Row("a", "aggregation", "generated", "forebay-rmw", 0, throughput=3.0)
    >>> standing(summarized(table([lmdb, ours]))).select("forebay's", "other", "ratio").row(0)
    ('forebay-rmw', 'lmdb', 0.3333333333333333)
    """
    served = known.filter(pl.col("throughput").is_not_null() & ~pl.col("store").is_in(VOLATILE))
    ours = pl.col("store").str.starts_with(OURS)
    keys = ["stream", "workload"]
    best = [
        served.filter(mine)
        .sort("throughput", descending=True)
        .group_by(keys, maintain_order=True)
        .agg(pl.col("store").first().alias(name), pl.col("throughput").first().alias(f"{name} accesses/s"))
        for mine, name in ((ours, "forebay's"), (~ours, "other"))
    ]
    both = known.select(keys).unique(maintain_order=True)
    for each in best:
        both = both.join(each, keys, "left", maintain_order="left")
    rocksdb = served.filter(pl.col("store") == "rocksdb").select(*keys, rocksdb="throughput")
    ours = pl.col("forebay's accesses/s")
    return (
        both.join(rocksdb, keys, "left", maintain_order="left")
        .with_columns(ratio=ours / pl.col("other accesses/s"))
        .with_columns((ours / pl.col("rocksdb")).alias("against rocksdb"))
        .drop("rocksdb")
    )


def _about(comparison: Comparison, known: pl.DataFrame) -> Section:
    bound = f" A run ends after {comparison.seconds:g} s if it has not served all by then." if comparison.seconds else ""
    said = (
        "1 round"
        if comparison.rounds == 1
        else f"{comparison.rounds} rounds: medians, with the least and the most as a line"
    )
    how = f"in batches of {comparison.batch_rows:,}" if comparison.batch_rows else "one at a time"
    latencies = "Latencies are those of batches. " if comparison.batch_rows else ""
    text = (
        f"One Python loop drives all stores with the same accesses, {how}; each store may take "
        f"{comparison.memory >> 20} MB and syncs nothing. {said}.{bound} {latencies}A dict keeps nothing on disk: it shows "
        "what the loop costs. Below, the fastest of forebay's stores beside the fastest other one that keeps state on disk; "
        "a ratio below 1 is a workload that forebay loses."
    )
    part = known.filter((pl.col("kind") == GENERATED) & (pl.col("stream") != "YCSB"))
    return Section("standing", "Where forebay stands", text, table=standing(part))


def _workloads(report: Report, known: pl.DataFrame, stream: str, measures: Measures) -> None:
    for measure, title in measures:
        about = f"The events of {stream}. Scales are logarithmic."
        _figure(report, known, f"figure-13-{measure}-{slug(stream)}", f"Figure 13: {stream}, {title}", measure, about)


def _figure(report: Report, known: pl.DataFrame, name: str, title: str, measure: str, about: str) -> None:
    if not known.height:
        return
    from forebay.harness.reports.charts import by_store

    columns = ["workload", "store", measure, f"{measure}_least", f"{measure}_most"]
    matrix = known.pivot("store", index="workload", values=measure, maintain_order=True)
    report.add(Section(name, title, about, by_store(known.select(columns), measure, title), known.select(columns), matrix))


def _sizes(report: Report, samples: pl.DataFrame, stream: str) -> None:
    """Memory and disk over time, in the first round."""
    if samples.is_empty():
        return
    wanted = (pl.col("stream") == stream) & (pl.col("kind") == GENERATED) & (pl.col("round") == 0)
    part = samples.filter(wanted).drop("stream", "kind", "round")
    if not part.height:
        return
    from forebay.harness.reports.charts import over_accesses

    about = (
        "Memory is what the process has more than before the run. What a store before has freed is used again and not "
        "counted, so a later store may seem to take less than it does."
    )
    for measure, title, text in (("memory_mb", "memory", about), ("disk_mb", "disk", "The files in a store's directory.")):
        chart = over_accesses(_thinned(part, measure), measure, f"{title}, MB")
        name, heading = f"{title}-{slug(stream)}", f"{title.capitalize()} over time: {stream}"
        report.add(Section(name, heading, text, chart, part.select("workload", "store", "accesses", "seconds", measure)))


def _thinned(samples: pl.DataFrame, measure: str) -> pl.DataFrame:
    """The most in each of about 60 stretches of a run."""
    run = ["workload", "store"]
    stretch = pl.int_range(pl.len()).over(run) // (pl.len().over(run) // _STRETCHES + 1)
    grouped = samples.with_columns(stretch=stretch).group_by(*run, "stretch", maintain_order=True)
    return grouped.agg(pl.col("accesses").last(), pl.col(measure).max()).drop("stretch")


def _contrast(report: Report, known: pl.DataFrame, measures: Measures) -> None:
    """Figure 11, of the workloads of which there are several kinds."""
    several = pl.col("kind").n_unique().over("stream", "workload") > 1
    part = known.filter(several)
    if not part.height:
        return
    from forebay.harness.reports.charts import by_kind

    part = part.with_columns(workload=pl.format("{}: {}", "stream", "workload"))
    captured = "captured traces, " if CAPTURED in part["kind"].to_list() else ""
    about = f"Generated accesses, {captured}and YCSB tuned to them with sequential (S), hotspot (H) and latest (L) requests."
    for measure, title in measures:
        columns = ["workload", "kind", "store", measure]
        chart = by_kind(part.select(columns), measure, "kind", title)
        matrix = part.pivot("store", index=["workload", "kind"], values=measure, maintain_order=True)
        report.add(Section(f"figure-11-{measure}", f"Figure 11: {title}", about, chart, part.select(columns), matrix))


def _concurrent(report: Report, frame: pl.DataFrame) -> None:
    from forebay.harness.reports.charts import by_kind

    for measure, title in MEASURES:
        chart = by_kind(frame.rename({"operator": "workload"}), measure, "beside", title)
        about = "An operator that has a store for itself, and one that shares it with another."
        report.add(Section(f"figure-14-{measure}", f"Figure 14: concurrent operators, {title}", about, chart, frame))


def _refused(report: Report, known: pl.DataFrame) -> None:
    refused = known.filter(pl.col("why") != "").select("stream", "workload", "kind", "store", "why")
    early = known.filter(~pl.col("whole") & (pl.col("why") == "")).select("stream", "workload", "kind", "store", "accesses")
    if refused.height:
        report.add(
            Section("refused", "What was not served", "Stores that do not serve a workload, or failed.", table=refused)
        )
    if early.height:
        text = "Runs that were ended before all was served; the accesses are those that were."
        report.add(Section("early", "What ended early", text, table=early))


def slug(text: str) -> str:
    """A text as part of a file's name.

    Examples
    --------
    >>> slug("Two words: 1/2")
    'two-words-1-2'
    """
    return "-".join("".join(each if each.isalnum() else " " for each in text.lower()).split())
