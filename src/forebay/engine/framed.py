"""Results of windows that are ranges of ordered rows: what moves with the ranges is computed for all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.moving import Frames, Places, moves, moving
from forebay.aggregates.processor import Processor
from forebay.engine.plan import WindowPlan
from forebay.engine.results import WINDOW

_RESULTS = 1 << 16
"""Results are handed on about so many at a time."""

_SPREAD = 1 << 20
"""Rows of windows that are aggregated by themselves are aggregated about so many at a time."""


def framed(
    plan: WindowPlan, rows: pl.DataFrame, frames: Frames, assembled: Callable[[Places, list[pa.Array]], pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A result for each frame, or what a user's function gives for it.

    Parameters
    ----------
    plan : WindowPlan
        The operator, whose aggregates are of a window alone.
    rows : polars.DataFrame
        Rows, those of a key together.
    frames : Frames
        The windows. All rows of one have the same key.
    assembled : callable
        Makes a record batch of the numbers of frames, and of their keys and aggregates.
    """
    aggregation, keys = plan.aggregation, list(plan.keys)
    assert not isinstance(aggregation, Processor)
    if not isinstance(aggregation, Aggregation):
        for ids in _parts(frames.sizes, _SPREAD):
            yield from aggregation.results(_spread(rows, frames, ids), keys, WINDOW, assembled)
        return
    at_once = {place: moving(each, rows, frames) for place, each in enumerate(aggregation.aggregates) if moves(each)}
    others = replace(aggregation, aggregates=tuple(each for each in aggregation.aggregates if not moves(each)))
    weights, most = (frames.sizes, _SPREAD) if others.aggregates else (np.ones_like(frames.current), _RESULTS)
    for ids in _parts(weights, most):
        one_by_one: Iterator[pa.Array] = iter(())
        if others.aggregates:
            one_by_one = iter(others.finish(others.partial(_spread(rows, frames, ids), (WINDOW,))))
        current = (rows[key].gather(frames.current[ids]) for key in keys)
        shown = [column.to_arrow(compat_level=pl.CompatLevel.oldest()) for column in current]
        places = range(len(aggregation.aggregates))
        found = [at_once[place].take(pa.array(ids)) if place in at_once else next(one_by_one) for place in places]
        yield assembled(ids, [*shown, *found])


def _parts(sizes: Places, most: int) -> Iterator[Places]:
    """The numbers of frames, as many together as have about so many rows, but one at least."""
    if len(sizes):
        yield from np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(np.cumsum(sizes) // most)) + 1)


def _spread(rows: pl.DataFrame, frames: Frames, ids: Places) -> pl.DataFrame:
    """The rows of some frames, each once for each of them, with the number of the frame as their `WINDOW`."""
    places, numbers = frames[ids].spread()
    return rows[places].with_columns(pl.Series(WINDOW, ids[numbers]))
