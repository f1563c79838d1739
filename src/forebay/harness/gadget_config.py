"""Gadget's own configuration files, ``config.txt``: lines of ``name = value``, in which a unit of time is a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from forebay.errors import InvalidArgument
from forebay.harness import operators
from forebay.harness.arrivals import Arrivals, ConstantRate, Poisson
from forebay.harness.distributions import Constant, Distribution, Hotspot, Normal, Sequential, Uniform, Zipfian
from forebay.harness.driver import Operator
from forebay.harness.durations import SECOND
from forebay.harness.events import Source, Stream, Watermarks
from forebay.harness.experiment import Experiment
from forebay.harness.traces import Trace

_WINDOWS = {
    "tumbling.keyed.incremental": "tumbling-incremental",
    "tumbling.keyed.holistic": "tumbling-holistic",
    "tumbling.all.incremental": "tumbling-incremental",
    "tumbling.all.holistic": "tumbling-holistic",
    "sliding.keyed.incremental": "sliding-incremental",
    "sliding.keyed.holistic": "sliding-holistic",
    "sliding.all.incremental": "sliding-incremental",
    "sliding.all.holistic": "sliding-holistic",
    "session.incremental": "session-incremental",
    "session.holistic": "session-holistic",
    "join.tumbling": "tumbling-join",
    "join.sliding": "sliding-join",
    "join.interval": "interval-join",
    "continuous.join": "continuous-join",
    "continuous.aggregation": "aggregation",
}
_FINAL = "FINISH"
_BACKWARDS = 3600 * SECOND
"""How far times of a trace may go back; Gadget takes any."""


def read_gadget_config(path: Path) -> Experiment:
    """The experiment that one of Gadget's files describes.

    Of what a file can say, distributions of the sizes of keys and of state keys have no counterpart, and which store is
    driven is said elsewhere. ``expected.num.operations`` is the limit of accesses. Sessions follow Table 1 of the paper,
    where Gadget's code does not.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "config.txt"
    >>> _ = path.write_text('''
    ... first.event.generator.type = gadget
    ... first.event.generator.key.popularity.distrib.type = zipf
    ... first.event.generator.key.popularity.distrib.params.s = 1
    ... first.event.generator.key.popularity.distrib.params.keyspacesize = 1000
    ... first.event.generator.event.occurrence.gap.distrib.type = exponential
    ... first.event.generator.event.occurrence.gap.distrib.params.lambda = 10
    ... operator.type = tumbling.keyed.incremental
    ... expected.num.operations = 100000
    ... window.length = 5
    ... ''')
    >>> experiment = read_gadget_config(path)
    >>> experiment.operator.size, experiment.streams[0].arrivals, experiment.limit
    (5000000, Poisson(rate=10.0), 100000)
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the configuration {path} cannot be read: {error}") from error
    settings, places = {}, {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.split("#")[0].partition("=")
        if equals:
            settings[name.strip()], places[name.strip()] = value.strip().removesuffix(";").strip(), number
        elif name.strip():
            raise InvalidArgument(f"{path}:{number}: {line.strip()!r} is not of the form name = value")
    return _Config(path, settings, places).experiment()


class _Config:
    def __init__(self, path: Path, settings: Mapping[str, str], places: Mapping[str, int]) -> None:
        self._path, self._settings, self._places = path, settings, places

    def experiment(self) -> Experiment:
        kind = self._one_of("operator.type", _WINDOWS)
        try:
            operator = self._operator(_WINDOWS[kind])
            sides = ("first", "second")[: operator.inputs]
            limit = self._whole("expected.num.operations")
            streams = tuple(self._stream(f"{side}.event.generator", ".all." in kind, limit) for side in sides)
        except InvalidArgument as error:
            if str(error).startswith(str(self._path)):
                raise
            raise InvalidArgument(f"{self._path}: {error}") from error
        return Experiment(_WINDOWS[kind], operator, streams, limit=limit)

    def _operator(self, name: str) -> Operator:
        if name == "interval-join":
            bounds = (self._whole("lower.bound") * SECOND, self._whole("upper.bound") * SECOND)
            return operators.IntervalJoin(*bounds)
        kind: Callable[..., Operator] = operators.WORKLOADS[name]
        if name in ("aggregation", "continuous-join"):
            return kind()
        length = self._whole("window.length") * SECOND
        late = {"lateness": self._whole("lateness.length", "0") * SECOND}
        if name.startswith("session"):
            return kind(gap=length, **late)
        slide = {"slide": self._whole("sliding.length") * SECOND} if name.startswith("sliding") else {}
        return kind(size=length, **slide, **late)

    def _stream(self, prefix: str, unkeyed: bool, events: int) -> Stream:
        watermarks = Watermarks(interval=self._whole(f"{prefix}.watermark.frequency", "1") * SECOND)
        if self._one_of(f"{prefix}.type", ("gadget", "tracefile")) == "tracefile":
            return self._trace(prefix, watermarks, unkeyed)
        late = self._number(f"{prefix}.outoforder.percentage", "0") / 100
        bound = self._whole(f"{prefix}.lateness.threshold", "0") * SECOND if late else 0
        keys: Distribution = Constant(0) if unkeyed else self._keys(f"{prefix}.key.popularity.distrib")
        arrivals = self._arrivals(f"{prefix}.event.occurrence.gap.distrib")
        seed = 0 if prefix.startswith("first") else 1
        return Source(events, arrivals, keys, self._sizes(), watermarks, late, bound, seed=seed)

    def _trace(self, prefix: str, watermarks: Watermarks, unkeyed: bool) -> Trace:
        file = self._path.parent / self._text(f"{prefix}.file.path")
        if unkeyed:
            self._wrong("operator.type", "an operator over all keys needs a source of type gadget here")
        try:
            with file.open() as lines:
                columns = tuple(str(number) for number in range(lines.readline().count(",") + 1))
        except (OSError, UnicodeDecodeError) as error:
            self._wrong(f"{prefix}.file.path", f"{file} cannot be read: {error}")
        key, time = (str(self._whole(f"{prefix}.{name}.index")) for name in ("key", "event.time"))
        kind = (str(self._whole(f"{prefix}.event.type.index")), _FINAL)
        return Trace(file, key, time, final=kind, bound=_BACKWARDS, watermarks=watermarks, columns=columns)

    def _keys(self, prefix: str) -> Distribution:
        kind = self._one_of(f"{prefix}.type", ("constant", "hotspot", "zipf", "sequential", "uniform"))
        if kind == "constant":
            return Constant(0)
        if kind == "uniform":
            return self._uniform(prefix)
        count = self._whole(f"{prefix}.params.keyspacesize")
        if kind == "zipf":
            return Zipfian(count, self._number(f"{prefix}.params.s"))
        if kind == "sequential":
            return Sequential(count)
        shares = (self._number(f"{prefix}.params.{name}") for name in ("hotspotfraction", "hotoperationfraction"))
        return Hotspot(count, *shares)

    def _arrivals(self, prefix: str) -> Arrivals:
        if self._one_of(f"{prefix}.type", ("exponential", "constant")) == "exponential":
            return Poisson(self._number(f"{prefix}.params.lambda"))
        gap = self._number(f"{prefix}.params.constant")
        return ConstantRate(1 / gap) if gap > 0 else self._wrong(f"{prefix}.params.constant", "must be above 0")

    def _sizes(self) -> Distribution:
        prefix = "operator.value.size.distrib"
        if f"{prefix}.type" not in self._settings:
            return Constant(8)
        kind = self._one_of(f"{prefix}.type", ("constant", "uniform", "normal"))
        if kind == "constant":
            return Constant(self._whole(f"{prefix}.params.constant"))
        if kind == "uniform":
            return self._uniform(prefix)
        return Normal(self._number(f"{prefix}.params.mean"), self._number(f"{prefix}.params.sd"))

    def _uniform(self, prefix: str) -> Uniform:
        return Uniform(self._whole(f"{prefix}.params.a"), self._whole(f"{prefix}.params.b"))

    def _text(self, name: str, default: str | None = None) -> str:
        value = self._settings.get(name, default)
        return value if value is not None else self._wrong(name, "is missing")

    def _one_of(self, name: str, known: Any) -> str:
        value = self._text(name)
        return value if value in known else self._wrong(name, f"is {value!r}; it must be one of {', '.join(known)}")

    def _whole(self, name: str, default: str | None = None) -> int:
        value = self._number(name, default)
        return int(value) if value.is_integer() else self._wrong(name, f"is {value}; it must be a whole number")

    def _number(self, name: str, default: str | None = None) -> float:
        text = self._text(name, default)
        try:
            return float(text)
        except ValueError:
            self._wrong(name, f"is {text!r}; it must be a number")

    def _wrong(self, name: str, message: str) -> NoReturn:
        where = f"{self._path}:{self._places[name]}" if name in self._places else str(self._path)
        raise InvalidArgument(f"{where}: {name} {message}")
