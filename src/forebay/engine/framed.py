"""Results of windows that are ranges of ordered rows: what moves with the ranges is computed for all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.moving import Chosen, Frames, Moved, Places, moves, moving
from forebay.aggregates.processor import Processor
from forebay.cutting import together
from forebay.engine.plan import WindowPlan
from forebay.engine.portions import PORTION_BYTES, PORTION_ROWS, Sizes, widths
from forebay.engine.results import WINDOW

_SPREAD = 1 << 20
"""Rows of windows that are aggregated by themselves are aggregated about so many at a time."""

_AT_ONCE = 8 * PORTION_BYTES
"""What moves is computed at once for frames whose results take about so much, where that is known beforehand."""

Assembled = Callable[[Places, list[pa.Array]], pa.RecordBatch]


def framed(plan: WindowPlan, rows: pl.DataFrame, frames: Frames, assembled: Assembled) -> Iterator[pa.RecordBatch]:
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
    aggregation, keys, numbers = plan.aggregation, list(plan.keys), np.arange(len(frames.current))
    assert not isinstance(aggregation, Processor)
    if not isinstance(aggregation, Aggregation):
        for share in together(_shares(rows, frames, keys, (), alone=True), 1):
            yield from aggregation.results(_spread(rows, frames, numbers[share]), keys, WINDOW, assembled)
        return
    most = max(1, _AT_ONCE // max(1, aggregation.result_bytes))
    if len(numbers) > most:
        for begin in range(0, len(numbers), most):
            some = numbers[begin : begin + most]
            yield from framed(plan, rows, frames[some], _renumbered(assembled, some))
        return
    at_once = {place: moving(each, rows, frames) for place, each in enumerate(aggregation.aggregates) if moves(each)}
    others = replace(aggregation, aggregates=tuple(each for each in aggregation.aggregates if not moves(each)))
    shares = _shares(rows, frames, keys, at_once.values(), alone=bool(others.aggregates))
    for share in together(shares + aggregation.result_bytes / PORTION_BYTES, 1):
        ids = numbers[share]
        one_by_one: Iterator[pa.Array] = iter(())
        if others.aggregates:
            one_by_one = iter(others.finish(others.partial(_spread(rows, frames, ids), (WINDOW,))))
        current = (rows[key].gather(frames.current[ids]) for key in keys)
        shown = [arrow.of(column) for column in current]
        places = range(len(aggregation.aggregates))
        found = [at_once[place].take(pa.array(ids)) if place in at_once else next(one_by_one) for place in places]
        yield assembled(ids, [*shown, *found])


def _renumbered(assembled: Assembled, numbers: Places) -> Assembled:
    """The same for some of the frames, which have other numbers among themselves."""
    return lambda ids, columns: assembled(numbers[ids], columns)


def _shares(rows: pl.DataFrame, frames: Frames, keys: list[str], moved: Iterable[Moved], *, alone: bool) -> Sizes:
    """The share of what is done at a time that each frame takes; ``alone`` if the rows of some are spread for it."""
    taken: Sizes = widths(rows.select(keys))[frames.current] if keys else np.zeros(len(frames.current))
    for values in moved:
        if isinstance(values, Chosen):
            taken += np.where(values.rows < 0, 0, widths(values.values.to_frame())[values.rows])
    if not alone:
        return np.maximum(1 / PORTION_ROWS, taken / PORTION_BYTES)
    before = np.concatenate([[0.0], np.cumsum(widths(rows))])
    taken += before[frames.ends] - before[frames.begins]
    return np.maximum(frames.sizes / _SPREAD, taken / PORTION_BYTES)


def _spread(rows: pl.DataFrame, frames: Frames, ids: Places) -> pl.DataFrame:
    """The rows of some frames, each once for each of them, with the number of the frame as their `WINDOW`."""
    places, numbers = frames[ids].spread()
    return rows[places].with_columns(pl.Series(WINDOW, ids[numbers]))
