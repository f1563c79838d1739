"""The state that a query finds when it starts, and which of its operators goes on with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.spark.driver.query import Planned
from forebay.state import layout as layouts
from forebay.state.layout import INSTANCES, JOIN, VNODES, Layout
from forebay.state.places import Root
from forebay.store import filenames

_log = logging.getLogger("forebay")


def directories_of(
    root: Root, operators: Sequence[Planned], committed: int, *, updating: bool
) -> tuple[dict[str, dict[str, Layout]], bool]:
    """The directories in which operators have state, by the names of their layouts, and what that state keeps.

    Also whether there is state of another layout that becomes one of theirs, which is noted there. `LayoutChanged` if it
    cannot.
    """
    stored = (layouts.as_stored(operator.layout, updating=updating) for operator in operators)
    here = {layouts.layout_id(layout): layout for layout in stored}
    found: dict[str, dict[str, Layout]] = {name: {} for name in here}
    there = sorted(name for name in root.safe.directories() if filenames.is_layout(name)) if here else []
    histories = {name: layouts.settled_history(root, name, committed) for name in there}
    changed: dict[str, dict[str, Layout]] = {}
    for name, history in histories.items():
        begun = {each: layouts.as_begun(layout, history[0]) for each, layout in here.items()}
        same = [name] if here.get(name) == history[-1] else [each for each, now in begun.items() if now == history[-1]]
        if same:
            found[same[0]][name] = layouts.kept(history[0])
        else:
            changed[name] = begun
    any_changed = bool(changed)
    while changed:
        name, heir = _best_heir(root, changed, histories, found)
        history, begun = histories[name], changed.pop(name)
        layouts.record(root, name, history, begun[heir], committed + 1)
        _tell_of_change(history[-1]["aggregates"], begun[heir]["aggregates"])
        found[heir][name] = layouts.kept(history[0])
    for each, begun in found.items():
        if len({(kept.get(VNODES), kept.get(INSTANCES)) for kept in begun.values()}) > 1:  # of operators that are alike
            raise layouts.changed(root, histories[min(begun)][-1], here[each])
    return found, any_changed


def _best_heir(
    root: Root,
    changed: Mapping[str, Mapping[str, Layout]],
    histories: Mapping[str, Sequence[Layout]],
    found: Mapping[str, Mapping[str, Layout]],
) -> tuple[str, str]:
    """Of directories whose layout no operator has, one, and the operator that goes on with it.

    The directory is one for which the fewest operators are left that have no state yet; of these, the pair with the greatest
    share of aggregates in common. `LayoutChanged` if a directory has no operator that can go on with it.
    """
    pairs = []
    for name, begun in changed.items():
        history = histories[name]
        heirs = [each for each, layout in begun.items() if layouts.evolves(history, layout)]
        if not heirs:
            raise layouts.changed(root, history[-1], _nearest(history[-1], list(begun.values())))
        left = [each for each in heirs if not found[each]] or heirs
        old = history[-1]["aggregates"].keys()
        for heir in left:
            new = begun[heir]["aggregates"].keys()
            pairs.append((-len(left), len(old & new) / len(old | new), name, heir))
    _, _, name, heir = max(pairs)
    return name, heir


def _tell_of_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    gone, come = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
    if come and not all(text.startswith(JOIN) for text in come):  # the rows in state are joined in the new way
        _log.warning(
            "the query has been changed: it goes on with %s%s. For an aggregate that has come, rows that are in state count "
            "where the state has the columns that it reads; elsewhere these are NULL. An aggregate is known by how it is "
            "written: if you have only written one in another way, or with a value that changes from run to run, stop the "
            "query before it has rows, and change it back.",
            ", ".join(come),
            f", and without {', '.join(gone)}" if gone else "",
        )


def is_seen(operators: Sequence[Planned], found: Mapping[str, Mapping[str, Layout]], committed: int) -> bool:
    """Whether the driver sees the state that there is: with ``durability=local`` it may be on another machine."""
    local = any(operator.place.durability == "local" for operator in operators)
    return not local or committed < 0 or any(found.values())


def _nearest(wanted: Layout, candidates: Sequence[Layout]) -> Layout:
    return max(candidates, key=lambda layout: sum(layout.get(name) == value for name, value in wanted.items()))
