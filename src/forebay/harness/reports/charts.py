"""How charts look, and the kinds of them that reports have."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

STORES = {
    "dict": "#8a94a0",
    "sqlite": "#4c9f70",
    "lmdb": "#2f8fa3",
    "berkeleydb": "#7a68b8",
    "redis": "#b05a8a",
    "rocksdb": "#1f5fa8",
    "rocksdb-delete-aware": "#6ea6dd",
    "forebay-rmw": "#b33c12",
    "forebay-aur": "#e5772e",
    "forebay-aar": "#f2b134",
}
"""A colour for each store, the same in all charts: forebay's are warm."""
OTHERS = ("#1f5fa8", "#e5772e", "#4c9f70", "#7a68b8", "#2f8fa3", "#b05a8a", "#f2b134", "#8a94a0")
_INK, _FAINT = "#3c4856", "#e3e8ee"
_PANEL = 190


def styled(chart: alt.TopLevelMixin) -> alt.TopLevelMixin:
    """A chart with the fonts and lines that all of them have."""
    return (
        chart.configure(font="Helvetica, Arial, sans-serif", background="white")
        .configure_axis(gridColor=_FAINT, domainColor="#aab4bf", tickColor="#aab4bf", labelColor=_INK, titleColor=_INK)
        .configure_view(stroke="#d5dce4")
        .configure_title(fontSize=12, color=_INK, anchor="start")
        .configure_legend(labelColor=_INK, titleColor=_INK, labelLimit=320, symbolSize=90)
    )


def by_store(frame: pl.DataFrame, measure: str, title: str) -> alt.TopLevelMixin:
    """A panel for each workload, a line for each store, and a dot on a logarithmic scale with what is least and most.

    The frame has ``workload``, ``store``, the measure, and the measure with ``_least`` and ``_most``. Where the measure is
    null the store does not serve the workload.
    """
    stores, workloads = (frame[name].unique(maintain_order=True).to_list() for name in ("store", "workload"))
    scale, axis = _logarithmic(pl.concat([frame[measure], frame[f"{measure}_least"], frame[f"{measure}_most"]]))
    colour = alt.Color("store:N", legend=None, scale=_colours(stores))
    panels, columns = [], 4
    for number, workload in enumerate(workloads):
        part = frame.filter(pl.col("workload") == workload).with_columns(
            label=pl.col(measure).map_elements(brief, pl.String, skip_nulls=True), none=pl.lit("does not serve it")
        )
        left = alt.Axis(title=None, labels=number % columns == 0, ticks=False)
        base = alt.Chart(part).encode(y=alt.Y("store:N", sort=stores, axis=left, scale=alt.Scale(domain=stores)))
        served = base.transform_filter(f"isValid(datum.{measure})")
        x = alt.X(f"{measure}:Q", scale=scale, axis=axis)
        dots = served.mark_point(filled=True, size=70, opacity=1).encode(x=x, color=colour)
        spread = served.mark_rule(strokeWidth=2).encode(
            x=alt.X(f"{measure}_least:Q", scale=scale, axis=axis), x2=f"{measure}_most:Q", color=colour
        )
        labels = served.mark_text(align="left", dx=7, fontSize=10, color=_INK)
        labels = labels.encode(x=alt.X(f"{measure}_most:Q", scale=scale, axis=axis), text="label:N")
        missing = base.transform_filter(f"!isValid(datum.{measure})").mark_text(
            align="left", fontSize=10, color="#9aa5b1", fontStyle="italic"
        )
        missing = missing.encode(x=alt.value(6), text="none:N")
        panels.append(
            alt.layer(spread, dots, labels, missing).properties(width=_PANEL, height=18 * len(stores), title=workload)
        )
    return styled(alt.concat(*panels, columns=columns, spacing=14).properties(title=_title(title)))


def by_kind(frame: pl.DataFrame, measure: str, kind: str, title: str) -> alt.TopLevelMixin:
    """A panel for each workload, a line for each store, and in it a dot for each kind, on a logarithmic scale."""
    stores, workloads, kinds = (frame[name].unique(maintain_order=True).to_list() for name in ("store", "workload", kind))
    scale, axis = _logarithmic(frame[measure])
    shapes = ["circle", "diamond", "triangle-up", "square", "cross"]
    panels = []
    for number, workload in enumerate(workloads):
        part = frame.filter((pl.col("workload") == workload) & pl.col(measure).is_not_null())
        left = alt.Axis(title=None, labels=number % 3 == 0, ticks=False, grid=True, bandPosition=0)
        dots = alt.Chart(part).mark_point(filled=True, size=75, opacity=0.85)
        panels.append(
            dots.encode(
                yOffset=alt.YOffset(f"{kind}:N", sort=kinds, scale=alt.Scale(domain=kinds, paddingOuter=0.25)),
                x=alt.X(f"{measure}:Q", scale=scale, axis=axis),
                y=alt.Y("store:N", sort=stores, axis=left, scale=alt.Scale(domain=stores)),
                color=alt.Color(f"{kind}:N", sort=kinds, title=None, scale=alt.Scale(domain=kinds, range=list(OTHERS))),
                shape=alt.Shape(f"{kind}:N", sort=kinds, title=None, scale=alt.Scale(domain=kinds, range=shapes)),
            ).properties(width=260, height=(12 + 9 * len(kinds)) * len(stores), title=workload)
        )
    return styled(alt.concat(*panels, columns=3, spacing=14).properties(title=_title(title)))


def stacked(frame: pl.DataFrame, of: str) -> alt.TopLevelMixin:
    """Shares of operations as one bar for each value of a column."""
    names = frame[of].unique(maintain_order=True).to_list()
    operations = ["GET", "PUT", "MERGE", "DELETE"]
    frame = frame.with_columns(place=pl.col("operation").replace_strict(operations, range(4), return_dtype=pl.Int64))
    base = alt.Chart(frame).encode(
        y=alt.Y(f"{of}:N", sort=names, title=None, axis=alt.Axis(labelLimit=320)),
        x=alt.X("share:Q", title="share of accesses", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        order="place:Q",
    )
    colours = alt.Scale(domain=operations, range=["#1f5fa8", "#d9691f", "#b98512", "#7b8794"])
    bars = base.mark_bar().encode(color=alt.Color("operation:N", scale=colours, title=None, sort=operations))
    labels = base.transform_filter("datum.share >= 0.04").mark_text(color="white", fontSize=10, fontWeight="bold")
    labels = labels.encode(x=alt.X("middle:Q"), text=alt.Text("share:Q", format=".0%"))
    labels = labels.transform_stack(
        stack="share",
        groupby=[of],
        sort=[alt.SortField("place")],
        as_=["begin", "end"],
    ).transform_calculate(middle="(datum.begin + datum.end) / 2")
    return styled(alt.layer(bars, labels).properties(width=620, height=alt.Step(30)))


def bars(frame: pl.DataFrame, of: str, measures: Sequence[tuple[str, str]]) -> alt.TopLevelMixin:
    """A panel for each measure, and in it a bar for each value of a column."""
    names = frame[of].unique(maintain_order=True).to_list()
    panels = []
    for number, (measure, title) in enumerate(measures):
        left = alt.Axis(labels=number == 0, ticks=number == 0, labelLimit=320)
        base = alt.Chart(frame.filter(pl.col(measure).is_not_null())).encode(
            y=alt.Y(f"{of}:N", sort=names, title=None, axis=left, scale=alt.Scale(domain=names)),
            x=alt.X(f"{measure}:Q", title=title, scale=alt.Scale(domain=[0, _above(frame[measure], 0.15)], nice=False)),
        )
        text = base.mark_text(align="left", dx=4, fontSize=10, color=_INK).encode(
            text=alt.Text(f"{measure}:Q", format=",.3~s")
        )
        panels.append(alt.layer(base.mark_bar(color=OTHERS[number]), text).properties(width=300, height=alt.Step(26)))
    return styled(alt.concat(*panels, columns=2, spacing=30))


def distances(frame: pl.DataFrame) -> alt.TopLevelMixin:
    """Histograms of stack distances, bins that double: panels by ``panel``, colours by ``series``.

    The bars of two series in a panel overlap; those of more stand side by side.
    """
    series = frame["series"].unique(maintain_order=True).to_list()
    bins = frame.unique("low").sort("low")["bin"].to_list()
    most = frame.group_by("panel").agg(pl.col("series").n_unique())["series"].max()
    top, overlap = _above(frame["share"], 0.05), most == 2
    panels = []
    for panel in frame["panel"].unique(maintain_order=True).to_list():
        chart = alt.Chart(frame.filter(pl.col("panel") == panel)).mark_bar(opacity=0.55 if overlap else 1)
        axis = alt.Axis(labelAngle=-45, labelOverlap=True, ticks=False)
        chart = chart.encode(
            x=alt.X("bin:O", sort=bins, title="stack distance", axis=axis, scale=alt.Scale(domain=bins)),
            y=alt.Y(
                "share:Q",
                stack=None,
                title="share of accesses",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, top], nice=False),
            ),
            color=alt.Color("series:N", sort=series, title=None, scale=alt.Scale(domain=series, range=list(OTHERS))),
        )
        if not overlap:
            chart = chart.encode(xOffset=alt.XOffset("series:N", sort=series, scale=alt.Scale(domain=series)))
        panels.append(chart.properties(width=440, height=210, title=panel))
    return styled(alt.concat(*panels, columns=2, spacing=24))


def sequences(frame: pl.DataFrame) -> alt.TopLevelMixin:
    """How many different sequences there are, by their length: panels by ``panel``, lines by ``series``."""
    series = frame["series"].unique(maintain_order=True).to_list()
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=2)
    dashes = [[5, 4] if each.startswith("shuffled") else [1, 0] for each in series]
    panels = []
    for panel in frame["panel"].unique(maintain_order=True).to_list():
        chart = alt.Chart(frame.filter(pl.col("panel") == panel)).mark_line(point=alt.OverlayMarkDef(size=40), strokeWidth=2)
        panels.append(
            chart.encode(
                x=alt.X("length:Q", title="keys in the sequence", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(zero=False)),
                y=alt.Y("unique:Q", title="different sequences", axis=alt.Axis(format="~s")),
                color=alt.Color(
                    "series:N", sort=series, title=None, legend=legend, scale=alt.Scale(domain=series, range=list(OTHERS))
                ),
                strokeDash=alt.StrokeDash(
                    "series:N", sort=series, title=None, legend=legend, scale=alt.Scale(domain=series, range=dashes)
                ),
            ).properties(width=440, height=210, title=panel)
        )
    return styled(alt.concat(*panels, columns=2, spacing=24))


def over_time(frame: pl.DataFrame, series: str) -> alt.TopLevelMixin:
    """The size of the working set after so many accesses, a panel for each value of a column, all of one height."""
    panels = []
    for number, name in enumerate(frame[series].unique(maintain_order=True).to_list()):
        chart = alt.Chart(frame.filter(pl.col(series) == name)).mark_area(line={"strokeWidth": 1.2}, opacity=0.25)
        panels.append(
            chart.encode(
                x=alt.X("accesses:Q", title="accesses", axis=alt.Axis(format="~s", tickCount=6)),
                y=alt.Y("keys:Q", title="keys" if number % 2 == 0 else None, axis=alt.Axis(format="~s", tickCount=5)),
            ).properties(width=460, height=120, title=name)
        )
    return styled(alt.concat(*panels, columns=2, spacing=16).resolve_scale(y="shared"))


def over_accesses(frame: pl.DataFrame, measure: str, title: str) -> alt.TopLevelMixin:
    """A measure after so many accesses: a panel for each workload, and in it a line for each store."""
    stores = frame["store"].unique(maintain_order=True).to_list()
    panels = []
    for number, workload in enumerate(frame["workload"].unique(maintain_order=True).to_list()):
        chart = alt.Chart(frame.filter(pl.col("workload") == workload))
        chart = chart.mark_line(strokeWidth=1.6, point=alt.OverlayMarkDef(size=12))
        panels.append(
            chart.encode(
                x=alt.X("accesses:Q", title="accesses", axis=alt.Axis(format="~s", tickCount=5)),
                y=alt.Y(f"{measure}:Q", title=title if number % 3 == 0 else None, axis=alt.Axis(format="~s", tickCount=5)),
                color=alt.Color("store:N", sort=stores, title=None, scale=_colours(stores)),
            ).properties(width=270, height=130, title=workload)
        )
    return styled(alt.concat(*panels, columns=3, spacing=16))


def brief(number: float) -> str:
    """A number in few characters.

    Examples
    --------
    >>> [brief(each) for each in (0.456, 7.01, 34.5, 1234, 45678, 1234567)]
    ['0.46', '7', '34', '1.2k', '46k', '1.2M']
    """
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2g}{sign}" if number < 10 * size else f"{number / size:.0f}{sign}"
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


def _above(values: pl.Series, share: float) -> float:
    """A little more than the most."""
    known = values.drop_nulls().to_numpy()
    return (float(known.max()) if len(known) else 1.0) * (1 + share)


def _logarithmic(values: pl.Series) -> tuple[alt.Scale, alt.Axis]:
    """A logarithmic scale with a place for labels at its right."""
    known = values.drop_nulls().to_numpy()
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 10.0)
    low, high = max(low, 1e-3), max(high, 1e-3)
    scale = alt.Scale(type="log", domain=[low / 1.6, high * 2 * (high / low) ** 0.18], nice=False)
    return scale, alt.Axis(title=None, format="~s", tickCount=4, labelOverlap=True)


def _colours(stores: Sequence[str]) -> alt.Scale:
    free = [colour for colour in OTHERS if colour not in STORES.values()] or list(OTHERS)
    return alt.Scale(
        domain=list(stores), range=[STORES.get(store, free[number % len(free)]) for number, store in enumerate(stores)]
    )


def _title(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, fontSize=13, anchor="start", offset=10)
