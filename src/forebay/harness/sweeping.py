"""An experiment many times over, each time with other settings: how accesses depend on windows, slides and watermarks."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from forebay.errors import InvalidArgument
from forebay.harness.events import Events, Stream
from forebay.harness.experiment import Experiment, Place


@dataclass(frozen=True)
class FirstEvents:
    """The first events of a stream.

    Examples
    --------
    >>> from forebay.harness.events import Source
    >>> sum(len(block) for block in FirstEvents(Source(events=1000), 300).blocks())
    300
    """

    stream: Stream
    events: int

    def blocks(self) -> Iterator[Events]:
        """The events, until there are as many."""
        left = self.events
        for block in self.stream.blocks():
            if left <= 0:
                return
            part = block if len(block) <= left else block.part(slice(0, left))
            left -= len(part)
            yield part


def varied(path: Path, vary: Sequence[str]) -> dict[str, Experiment]:
    r"""The experiments that settings and their values make, all combinations of them, each with a name that tells it apart.

    Parameters
    ----------
    path : Path
        The file of the experiment.
    vary : sequence of str
        Settings by the names that lead to them, and their values, such as ``operator.slide=1s,5s``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "experiment.toml"
    >>> _ = path.write_text('workload = "tumbling-incremental"\n[[source]]\nevents = 10\n')
    >>> sweep = varied(path, ["operator.size=1s,2s", "source.watermarks.events=10,100"])
    >>> list(sweep)[-1], list(sweep.values())[-1].operator.size
    ('size = 2s, events = 100', 2000000)
    """
    settings = [_setting(each) for each in vary]
    last = [place[-1] for place, _ in settings]
    names = [str(place[-1]) if last.count(place[-1]) == 1 else ".".join(map(str, place)) for place, _ in settings]
    experiments = {}
    for values in product(*(given for _, given in settings)):
        name = ", ".join(f"{name} = {text}" for name, (text, _) in zip(names, values, strict=True))
        chosen = {place: value for (place, _), (_, value) in zip(settings, values, strict=True)}
        experiments[name] = Experiment.read(path, chosen)
    return experiments


def _setting(given: str) -> tuple[Place, list[tuple[str, Any]]]:
    """A setting, and its values as text and as what they are."""
    name, equal, values = given.partition("=")
    texts = list(dict.fromkeys(each.strip() for each in values.split(",") if each.strip()))
    if not equal or not name.strip() or not texts:
        raise InvalidArgument(f"vary is {given!r}; write a setting and its values, such as operator.slide=1s,5s,1m")
    place = tuple(int(each) if each.isdigit() else each for each in name.strip().split("."))
    return place, [(text, _value(text)) for text in texts]


def _value(text: str) -> Any:
    """A value as TOML has it, or text, such as a duration."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
