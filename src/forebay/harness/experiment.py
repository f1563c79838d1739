"""An experiment as a TOML file: a workload over one or more sources, and the stores that it drives.

Every setting is checked before anything runs. An error names the file and the line.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from forebay.errors import InvalidArgument
from forebay.harness.arrivals import Bursty, ConstantRate, Poisson
from forebay.harness.distributions import (
    Constant,
    Ecdf,
    Exponential,
    Hotspot,
    Latest,
    Normal,
    Sequential,
    Uniform,
    Zipfian,
)
from forebay.harness.driver import Operator
from forebay.harness.durations import microseconds
from forebay.harness.events import Source, Stream, Watermarks
from forebay.harness.flights import Flights
from forebay.harness.formats import FORMATS
from forebay.harness.operators import WORKLOADS
from forebay.harness.stores import MEMORY, STORES
from forebay.harness.traces import Trace, TraceArrivals

Table = Mapping[str, Any]
Place = tuple[str | int, ...]
"""Where a setting is: names of tables and numbers within arrays of them."""

ARRIVALS = {"constant": ConstantRate, "poisson": Poisson, "bursty": Bursty, "trace": TraceArrivals}
KEYS = {
    "constant": Constant,
    "uniform": Uniform,
    "zipfian": Zipfian,
    "hotspot": Hotspot,
    "sequential": Sequential,
    "exponential": Exponential,
    "latest": Latest,
    "ecdf": Ecdf,
}
SIZES = {"constant": Constant, "uniform": Uniform, "normal": Normal, "ecdf": Ecdf}

_DURATIONS = {"bound", "start", "burst", "pause", "interval", "delay", "slide", "lateness", "gap", "lower", "upper"}
_TOP = ("workload", "operator", "source", "stores", "memory_mb", "rate", "limit")
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]")
_SETTING = re.compile(r"""\s*["']?([A-Za-z0-9_.-]+)["']?\s*=""")


@dataclass(frozen=True)
class Experiment:
    """What a file describes.

    Attributes
    ----------
    workload : str
        The name of the operator: one of `forebay.harness.operators.WORKLOADS`, or ``module:Class``.
    operator : Operator
        The operator with its settings.
    streams : tuple of Stream
        Its inputs.
    stores : tuple of str
        Names of stores.
    memory : int
        Bytes that each store may take.
    rate : float or None
        Accesses per second at which stores are driven, or as fast as they go.
    limit : int or None
        How many accesses are made at most.
    """

    workload: str
    operator: Operator
    streams: tuple[Stream, ...]
    stores: tuple[str, ...] = ("dict",)
    memory: int = MEMORY
    rate: float | None = None
    limit: int | None = None

    @classmethod
    def read(cls, path: Path, settings: Mapping[Place, Any] | None = None) -> Experiment:
        r"""The experiment that a file describes.

        Parameters
        ----------
        path : Path
            The file.
        settings : mapping of tuple to any value, or None
            Settings in place of those of the file, by the names that lead to them. ``("source", "keys", "keys")`` is a
            setting of every source, and ``("source", 0, "keys", "keys")`` one of the first.

        Examples
        --------
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "experiment.toml"
        >>> _ = path.write_text('workload = "aggregation"\n[[source]]\nevents = 10\nkeys = {kind = "zipfian", keys = 5}\n')
        >>> Experiment.read(path).streams[0].keys
        Zipfian(keys=5, exponent=0.99)
        >>> Experiment.read(path, {("source", "keys", "keys"): 7}).streams[0].keys
        Zipfian(keys=7, exponent=0.99)
        """
        try:
            text = path.read_text()
            tables = tomllib.loads(text)
        except OSError as error:
            raise InvalidArgument(f"the experiment {path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{path} is not a TOML file: {error}") from error
        reader = _Reader(path, _lines(text))
        for place, value in (settings or {}).items():
            reader.put(tables, place, value)
        return reader.experiment(tables)


class _Reader:
    """Makes objects of tables, and says where what is wrong with them stands."""

    def __init__(self, path: Path, lines: Mapping[Place, int]) -> None:
        self._path, self._lines = path, lines

    def put(self, tables: dict[str, Any], place: Place, value: Any) -> None:
        """Put a setting in place of the one that the file has."""
        first, *rest = place
        if first == "source" and rest and not isinstance(rest[0], int):
            for number in range(len(tables.get("source", []))):
                self.put(tables, (first, number, *rest), value)
            return
        table: Any = tables
        for step in place[:-1]:
            if isinstance(table, dict):
                table = table.setdefault(step, {})
            elif isinstance(table, list) and isinstance(step, int) and step < len(table):
                table = table[step]
            else:
                self.wrong(place, f"there is no {'.'.join(map(str, place))} to set")
        if not isinstance(table, dict):
            self.wrong(place, f"there is no {'.'.join(map(str, place))} to set")
        table[place[-1]] = value

    def experiment(self, tables: Table) -> Experiment:
        self._only(tables, _TOP, ())
        workload, kind = self._workload(tables)
        operator = self.built(kind, self._table(tables, "operator", ()), ("operator",), {"size"})
        sources = tables.get("source")
        if not isinstance(sources, list) or not all(isinstance(each, dict) for each in sources) or not sources:
            self.wrong(("source",), "an experiment has at least one [[source]]")
        if len(sources) != operator.inputs:
            self.wrong(("source",), f"{workload} has {operator.inputs} inputs; there are {len(sources)} times [[source]]")
        streams = tuple(self._stream(source, ("source", number)) for number, source in enumerate(sources))
        names = tables.get("stores", ["dict"])
        if not isinstance(names, list) or not names:
            self.wrong(("stores",), 'stores is a list of names, such as ["dict", "rocksdb"]')
        for name in names:
            if not isinstance(name, str) or (name not in STORES and ":" not in name):
                self.wrong(("stores",), f"there is no store {name!r}; use one of {', '.join(STORES)}, or module:Class")
        memory, rate = tables.get("memory_mb", MEMORY >> 20), tables.get("rate")
        if not _is_number(memory) or memory < 1:
            self.wrong(("memory_mb",), f"memory_mb is {memory!r}; it must be a number, and at least 1")
        if rate is not None and (not _is_number(rate) or rate <= 0):
            self.wrong(("rate",), f"rate is {rate!r}; it must be a number of accesses per second above 0")
        limit = tables.get("limit")
        if limit is not None and (not _TYPES["int"](limit) or limit < 1):
            self.wrong(("limit",), f"limit is {limit!r}; it must be a whole number of accesses above 0")
        return Experiment(workload, operator, streams, tuple(names), int(memory * (1 << 20)), rate, limit)

    def _workload(self, tables: Table) -> tuple[str, Callable[..., Operator]]:
        """The name and the class of the operator, one of `WORKLOADS` or one of a user's own."""
        given = tables.get("workload")
        if not isinstance(given, str) or ":" not in given:
            workload = self._one_of(tables, "workload", WORKLOADS, ())
            return workload, WORKLOADS[workload]
        module, _, name = given.partition(":")
        try:
            kind = getattr(import_module(module), name)
        except Exception as error:  # the module may raise anything
            self.wrong(("workload",), f"the operator {given} cannot be imported: {error}")
        if not (isinstance(kind, type) and issubclass(kind, Operator)):
            self.wrong(("workload",), f"{given} is no class of operators, as forebay.harness.driver has them")
        return given, kind

    def built(self, kind: Callable[..., Any], table: Table, place: Place, durations: set[str] | None = None) -> Any:
        """An object of a dataclass whose fields a table gives."""
        known = {each.name: each for each in fields(kind)} if is_dataclass(kind) else {}
        self._only(table, known, place)
        values: dict[str, Any] = {}
        for name, each in known.items():
            if name in table:
                values[name] = self._value(each, table[name], (*place, name), _DURATIONS | (durations or set()))
            elif each.default is MISSING and each.default_factory is MISSING:
                self.wrong(place, f"{name} is missing")
        try:
            return kind(**values)
        except InvalidArgument as error:
            return self.wrong(place, str(error))

    def wrong(self, place: Place, message: str) -> NoReturn:
        """Raise what is wrong with the setting at a place."""
        while place and place not in self._lines:
            place = place[:-1]
        raise InvalidArgument(f"{self._path}:{self._lines.get(place, 1)}: {message}")

    def _stream(self, table: Table, place: Place) -> Stream:
        given = dict(table)
        given["watermarks"] = self.built(
            Watermarks, self._table(table, "watermarks", place) or {"events": 100}, (*place, "watermarks")
        )
        if table.get("format") == "flights" and "trace" not in table:
            del given["format"]
            return self.built(Flights, given, place)
        if "trace" in table:
            given["path"] = self._path.parent / str(given.pop("trace"))
            if "format" in table:
                given = {**FORMATS[self._one_of(table, "format", FORMATS, place)], **given}
                del given["format"]
            return self.built(Trace, given, place)
        for name, kinds in (("arrivals", ARRIVALS), ("keys", KEYS), ("sizes", SIZES)):
            if name in table:
                given[name] = self._kind(table, name, kinds, place)
        return self.built(Source, given, place)

    def _kind(self, table: Table, name: str, kinds: Mapping[str, Callable[..., Any]], place: Place) -> Any:
        """What a table describes of which ``kind`` says the class."""
        described, place = dict(self._table(table, name, place)), (*place, name)
        kind = kinds[self._one_of(described, "kind", kinds, place)]
        del described["kind"]
        if kind is TraceArrivals and "path" in described:
            described["path"] = self._path.parent / str(described["path"])
        return self.built(kind, described, place)

    def _value(self, known: Field[Any], value: Any, place: Place, durations: set[str]) -> Any:
        kind, name = str(known.type), known.name
        if name in durations and isinstance(value, str):
            try:
                return microseconds(value)
            except InvalidArgument as error:
                self.wrong(place, f"{name}: {error}")
        if kind.startswith(("Sequence", "tuple")):
            element = next(each for each in _TYPES if each in kind)
            if not isinstance(value, list | tuple) or not all(map(_TYPES[element], value)):
                self.wrong(place, f"{name} is {value!r}; it must be a list, and each of it {_SAID[element]}")
            return tuple(value)
        accepted = [each for each in _TYPES if each in kind.split(" | ")]
        if accepted and not any(_TYPES[each](value) for each in accepted):
            self.wrong(place, f"{name} is {value!r}; it must be {' or '.join(_SAID[each] for each in accepted)}")
        return value

    def _table(self, table: Table, name: str, place: Place) -> Table:
        value = table.get(name, {})
        if not isinstance(value, dict):
            self.wrong((*place, name), f"{name} is {value!r}; it must be a table")
        return value

    def _one_of(self, table: Table, name: str, known: Mapping[str, Any], place: Place) -> str:
        if name not in table:
            self.wrong(place, f"{name} is missing; it must be one of {', '.join(known)}")
        value = table[name]
        if not isinstance(value, str) or value not in known:
            self.wrong((*place, name), f"{name} is {value!r}; it must be one of {', '.join(known)}")
        return str(value)

    def _only(self, table: Table, known: Any, place: Place) -> None:
        for name in table:
            if name not in known:
                self.wrong((*place, name), f"there is no setting {name}; there are {', '.join(known) or 'none'}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": _is_number,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
}
_SAID = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


def _lines(text: str) -> dict[Place, int]:
    """On which lines tables begin, and settings stand."""
    lines: dict[Place, int] = {}
    counts: dict[str, int] = {}
    table: Place = ()
    for number, line in enumerate(text.splitlines(), 1):
        header, setting = _HEADER.match(line), _SETTING.match(line)
        if header and line.strip().startswith("[["):
            counts[header[1]] = counts.get(header[1], -1) + 1
            table = (header[1], counts[header[1]])
            lines.setdefault((header[1],), number)
        elif header:
            first, *others = header[1].split(".")
            table = (first, *([counts[first]] if first in counts else []), *others)
        if header:
            lines[table] = number
        elif setting:
            lines.setdefault((*table, *setting[1].split(".")), number)
    return lines
