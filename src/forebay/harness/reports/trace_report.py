"""What a report says of traces: the paper's figures 2 to 7 and 10, and Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import polars as pl

from forebay.harness import analysis
from forebay.harness.reports.described import SAMPLE, SHUFFLED, Described, histogram
from forebay.harness.reports.page import Report, Section


def trace_report(described: Sequence[Described], facts: Mapping[str, str], notes: Iterable[str] = ()) -> Report:
    """The report of some traces."""
    from forebay.harness.reports import charts

    report = Report("State accesses", facts, list(notes))
    if not described:
        return report
    composed = composition_table(described)
    report.add(
        Section(
            "composition",
            "Figure 2: composition",
            "The share of each operation.",
            charts.stacked(composed, "trace"),
            composed,
        )
    )
    amplified = amplification_table(described)
    measures = [("keys", "state keys per event key"), ("events", "accesses per event")]
    if all(each.amplified_events is None for each in described):
        measures.pop()
    about = (
        "How much more a store has to do, and to hold, than the stream has. Accesses per event need the number of events."
    )
    report.add(
        Section(
            "amplification", "Figures 3 and 4: amplification", about, charts.bars(amplified, "trace", measures), amplified
        )
    )
    _distortion(report, described)
    _locality(report, described)
    _working(report, described)
    _lives(report, described)
    if len(described) > 1:
        _pairs(report, described)
    return report


def composition_table(described: Iterable[Described]) -> pl.DataFrame:
    """The shares of operations, a row for each trace and operation."""
    rows = [
        {"trace": each.name, "operation": name, "share": share}
        for each in described
        for name, share in each.composition.items()
    ]
    return pl.DataFrame(rows)


def amplification_table(described: Iterable[Described]) -> pl.DataFrame:
    """How large traces are beside their events."""
    rows = [
        {
            "trace": each.name,
            "accesses": each.accesses,
            "state keys": each.keys,
            "events": each.amplified_events,
            "keys": each.amplified_keys,
        }
        for each in described
    ]
    return pl.DataFrame(rows, {"trace": str, "accesses": int, "state keys": int, "events": float, "keys": float})


def working_table(described: Iterable[Described]) -> pl.DataFrame:
    """Working sets over time."""
    return pl.concat([each.working.select(pl.lit(each.name).alias("trace"), pl.all()) for each in described])


def _locality(report: Report, described: Sequence[Described]) -> None:
    from forebay.harness.reports import charts

    contrasted = any(len(each.distances) > 2 for each in described)
    parts = [("5", "beside the same accesses in a random order", lambda kind: not kind.startswith("YCSB"))]
    if contrasted:
        parts.append(("7", "beside YCSB that was tuned to it", lambda kind: kind != SHUFFLED))
    for number, beside, shown in parts:
        bins = [
            {"panel": each.name, "series": _series(kind, each), "low": low, "bin": name, "share": share}
            for each in described
            for kind, distances in each.distances.items()
            if shown(kind)
            for low, name, share in histogram(distances)
        ]
        if bins:
            frame = pl.DataFrame(bins)
            about = (
                f"Different keys between an access and the one before of the same key, {beside}. Bars overlap, bins double."
            )
            title = f"Figure {number}: stack distances"
            means = _means(described, shown)
            report.add(Section(f"figure-{number}-distances", title, about, charts.distances(frame), frame, means))
        counts = [
            {"panel": each.name, "series": _series(kind, each), "length": length, "unique": count}
            for each in described
            for kind, sequences in each.sequences.items()
            if shown(kind) or kind == SHUFFLED
            for length, count in enumerate(sequences, 1)
        ]
        if counts:
            frame = pl.DataFrame(counts)
            about = f"How many different sequences of keys there are, {beside}: the fewer, the more spatial locality."
            title = f"Figure {number}: unique sequences"
            matrix = frame.pivot("length", index=["panel", "series"], values="unique", maintain_order=True)
            report.add(Section(f"figure-{number}-sequences", title, about, charts.sequences(frame), frame, matrix))


def _series(kind: str, each: Described) -> str:
    return "trace" if kind == each.name else kind


def _means(described: Sequence[Described], shown: Callable[[str], bool]) -> pl.DataFrame:
    rows = [
        {"trace": each.name, "accesses of": _series(kind, each), "mean stack distance": float(distances.mean())}
        for each in described
        for kind, distances in each.distances.items()
        if shown(kind) and len(distances)
    ]
    return pl.DataFrame(rows, {"trace": str, "accesses of": str, "mean stack distance": float})


def _distortion(report: Report, described: Sequence[Described]) -> None:
    """Table 2, and section 4 where there is YCSB."""
    about = (
        "The statistic of Kolmogorov and Smirnov with its p-value, and the distance of Wasserstein, between event keys and "
        "state keys, both numbered as they come. Only where state keys are event keys is there no distance."
    )
    table = pl.DataFrame([{"trace": each.name, "accesses": each.accesses} | each.distortion._asdict() for each in described])
    report.add(Section("distortion", "Table 2: state keys and event keys", about, table=table))
    rows = []
    for each in described:
        for kind, keys in each.beside.items():
            apart = {"keys, by rank": keys}
            if len(each.distances.get(kind, ())) and len(each.distances[each.name]):
                apart["stack distances"] = analysis.distance(each.distances[each.name], each.distances[kind])
            rows += [{"trace": each.name, "beside": kind, "of": what} | far._asdict() for what, far in apart.items()]
    if rows:
        about = "How far YCSB is from the traces that it was tuned to. A p-value below 0.05 says that the two are different."
        report.add(Section("ycsb-apart", "Section 4: how far YCSB is from a trace", about, table=pl.DataFrame(rows)))


def _working(report: Report, described: Sequence[Described]) -> None:
    from forebay.harness.reports import charts

    frame = working_table(described)
    if not frame.height:
        return
    about = "Keys that have been accessed and will be again, or were never deleted, as the trace goes on."
    largest = frame.group_by("trace", maintain_order=True).agg(pl.col("keys").max().alias("largest working set"))
    report.add(
        Section("working-set", "Figures 5 and 6: working set", about, charts.over_time(frame, "trace"), frame, largest)
    )


def _lives(report: Report, described: Sequence[Described]) -> None:
    rows = []
    for each in described:
        for kind, lives in each.lives.items():
            found = analysis.percentiles(lives)
            rows.append(
                {"trace": each.name, "accesses of": _series(kind, each)}
                | {("max" if share == 100 else f"p{share:g}"): value for share, value in found.items()}
            )
    about = f"Accesses from the first to the last of a key, of {SAMPLE:,} keys at most."
    report.add(Section("times-to-live", "Table 3: times to live", about, table=pl.DataFrame(rows)))


def _pairs(report: Report, described: Sequence[Described]) -> None:
    """Each two traces against each other (figure 10)."""
    from forebay.harness.reports import charts

    bins, counts, apart = [], [], []
    for one, other in combinations(described, 2):
        panel = f"{one.name} and {other.name}"
        for each in (one, other):
            own = each.distances.get(each.name)
            if own is None:
                continue
            bins += [
                {"panel": panel, "series": each.name, "low": low, "bin": name, "share": share}
                for low, name, share in histogram(own)
            ]
            counts += [
                {"panel": panel, "series": each.name, "length": length, "unique": count}
                for length, count in enumerate(each.sequences[each.name], 1)
            ]
        kinds = [("keys, by rank", one.ranks, other.ranks)]
        if one.distances and other.distances:
            kinds.append(("stack distances", one.distances[one.name], other.distances[other.name]))
        for what, mine, theirs in kinds:
            if len(mine) and len(theirs):
                apart.append({"traces": panel, "of": what} | analysis.distance(mine, theirs)._asdict())
    about = "Two traces, such as a generated and a captured one: the nearer, the more alike they are to a store."
    if bins:
        frame = pl.DataFrame(bins)
        report.add(
            Section(
                "figure-10-distances", "Figure 10: stack distances", about, charts.distances(frame), frame, pl.DataFrame()
            )
        )
        frame = pl.DataFrame(counts)
        matrix = frame.pivot("length", index=["panel", "series"], values="unique", maintain_order=True)
        report.add(
            Section("figure-10-sequences", "Figure 10: unique sequences", about, charts.sequences(frame), frame, matrix)
        )
    about = (
        "The statistic of Kolmogorov and Smirnov with its p-value, and the distance of Wasserstein. A p-value below 0.05 "
        "says that the two are of different distributions."
    )
    report.add(Section("apart", "How far traces are apart", about, table=pl.DataFrame(apart)))
