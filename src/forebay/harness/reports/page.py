"""A report: sections with a picture and a table each, as HTML, PNG and CSV."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from forebay.errors import InvalidArgument, StateDirectoryError

if TYPE_CHECKING:
    import altair as alt

_STYLE = """
:root{color-scheme:light}
body{font:15px/1.5 system-ui,sans-serif;color:#1d2733;background:#fff;margin:0 auto;padding:2em;max-width:1180px}
h1{font-size:1.9em;margin:0 0 .3em}h2{font-size:1.25em;margin:2.2em 0 .2em;border-top:1px solid #dde3ea;padding-top:1em}
p{max-width:75ch}nav a{margin-right:1.2em}a{color:#1f5fa8}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:.6em 0}
td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #e6ebf1;white-space:nowrap}
td.text,th.text{text-align:left}td.long{white-space:normal;min-width:32ch;text-align:left}
.wide{overflow-x:auto}.facts td{text-align:left}.note{background:#fff4d6;padding:.5em .9em;border-left:4px solid #e0a800}
"""
_LONG = 40


@dataclass(frozen=True)
class Section:
    """A part of a report. Its name is that of its files."""

    name: str
    title: str
    text: str
    chart: alt.TopLevelMixin | None = None
    table: pl.DataFrame | None = None
    shown: pl.DataFrame | None = None
    """What the page has of the table, if that is not all of it."""


@dataclass
class Report:
    """Sections in their order, with what they were measured on.

    Examples
    --------
    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp())
    >>> report = Report("An example", {"machine": "a small one"})
    >>> report.add(Section("shares", "Shares", "One row.", table=pl.DataFrame({"store": ["dict"], "share": [0.25]})))
    >>> report.write(out)
    >>> sorted(path.name for path in out.iterdir()), (out / "shares.csv").read_text().splitlines()
    (['facts.json', 'report.html', 'shares.csv'], ['store,share', 'dict,0.25'])
    """

    title: str
    facts: Mapping[str, str]
    notes: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)

    def add(self, section: Section) -> None:
        """Put a section at the end."""
        self.sections.append(section)

    def write(self, directory: Path) -> None:
        """Write ``report.html`` and the files beside it."""
        try:
            (directory / "facts.json").write_text(json.dumps(dict(self.facts), indent=1))
            for section in self.sections:
                if section.table is not None:
                    section.table.write_csv(directory / f"{section.name}.csv")
            page, specifications = self._page()
            drawn = {name: json.dumps(each).replace("</", "<\\/") for name, each in specifications.items()}
            (directory / "report.html").write_text(page + _scripts(drawn))
            for name, specification in drawn.items():
                (directory / f"{name}.png").write_bytes(_png(specification))
        except OSError as error:
            raise StateDirectoryError(f"the report in {directory} cannot be written: {error}") from error

    def _page(self) -> tuple[str, dict[str, dict[str, Any]]]:
        specifications: dict[str, dict[str, Any]] = {}
        facts = "".join(f"<tr><td>{_safe(name)}</td><td>{_safe(value)}</td></tr>" for name, value in self.facts.items())
        parts = [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_safe(self.title)}</title>',
            f"<style>{_STYLE}</style>",
            f"<h1>{_safe(self.title)}</h1>",
            *(f'<p class="note">{_safe(note)}</p>' for note in self.notes),
            f'<table class="facts">{facts}</table>',
            "<nav>" + "".join(f'<a href="#{each.name}">{_safe(each.title)}</a>' for each in self.sections) + "</nav>",
        ]
        for section in self.sections:
            parts.append(f'<h2 id="{section.name}">{_safe(section.title)}</h2><p>{_safe(section.text)}</p>')
            links = []
            if section.chart is not None:
                specifications[section.name] = section.chart.to_dict()
                parts.append(f'<div class="wide" id="chart-{section.name}"></div>')
                links.append(f'<a href="{section.name}.png">PNG</a>')
            if section.table is not None:
                links.append(f'<a href="{section.name}.csv">CSV</a>')
            parts.append(f"<p>{' '.join(links)}</p>")
            shown = section.table if section.shown is None else section.shown
            if shown is not None and shown.height:
                body = _table(shown)
                if shown.height > 15:
                    body = f"<details><summary>the table, {shown.height} rows</summary>{body}</details>"
                parts.append(body)
        return "".join(parts), specifications


def require_drawing() -> None:
    """Say what to install if nothing can be drawn.

    Raises
    ------
    InvalidArgument
        A package that draws is not installed; the extra ``harness`` brings it.
    """
    for package in ("altair", "vl_convert"):
        if find_spec(package) is None:
            raise InvalidArgument(f"a report needs {package}; pip install '.[harness]' in a clone of forebay")


def _scripts(drawn: Mapping[str, str]) -> str:
    """What draws the charts: Vega, once, and their specifications."""
    if not drawn:
        return ""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub has no default
    library = bundle.replace("</script", "<\\/script")
    calls = "".join(f'vegaEmbed("#chart-{name}",{each},{{actions:false}});\n' for name, each in drawn.items())
    return f'<script type="module">{library}\n{calls}</script>'


def _png(specification: str) -> bytes:
    import vl_convert

    picture: bytes = vl_convert.vegalite_to_png(specification, scale=2)
    return picture


def _table(frame: pl.DataFrame) -> str:
    text = [frame[name].dtype == pl.String for name in frame.columns]
    head = "".join(
        f'<th class="text">{_safe(name)}</th>' if left else f"<th>{_safe(name)}</th>"
        for name, left in zip(frame.columns, text, strict=True)
    )
    rows = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in frame.iter_rows())
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f'<td class="{"long" if len(value) > _LONG else "text"}">{_safe(value)}</td>'
    return f"<td>{_safe(shown(value))}</td>"


def shown(value: Any) -> str:
    """A cell of a table as text.

    Examples
    --------
    >>> shown(1234567), shown(1234.5678), shown(0.12345), shown(None)
    ('1,234,567', '1,235', '0.1235', '')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _safe(text: str) -> str:
    return html.escape(text)
