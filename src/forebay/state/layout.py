"""What an operator's state looks like, and where each of its store instances is: ``<root>/<layout id>/<instance>/``."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from forebay.engine.widening import widens
from forebay.errors import CorruptState, LayoutChanged
from forebay.restoring import RESTORE
from forebay.state.places import Root
from forebay.store import filenames
from forebay.store.archive import MountedArchive

Layout = dict[str, Any]
"""Window function, keys and pattern, which must not change under a checkpoint; the number of instances, which state keeps;
and the aggregates, each with the columns that it reads and their types, which may change as `evolves` says."""

APPLY, JOIN = "apply", "join("
"""How a user's function, and a join, begin among the aggregates."""

DISTINCT = "DISTINCT "
"""In the text of an aggregate that keeps how often each value came, and gives how many different ones there were."""

FURTHER_KEY = "k_"
"""How the columns begin, among those that an aggregate reads, that are the keys of its pattern beside the common ones."""

NAMESAKE = "#"
"""In the name of an input whose text is also that of another one: it goes by their order, which must not change then."""

KIND, IDENTITY = "kind", "identity"
"""What a layout has for the kind of its operator, and for how keys are told apart."""

VNODES = "virtualNodes"
"""What a layout has for the number of virtual nodes, if that does not follow from the number of state partitions."""

INSTANCES = "instancesPerPartition"
"""What a layout has for the number of virtual nodes in each state partition, where ``VNODES`` is not set."""

_SETTINGS = (INSTANCES, VNODES)
"""What a layout has of the settings under ``spark.forebay``. State keeps what it was begun with, as Spark keeps the number
of state partitions; a query that sets ``VNODES`` to another number cannot go on with it."""

_AGGREGATES = "aggregates"

_SIDE = "a___right"
"""The column that says which side of a join a row is of; joins have it beside each of theirs."""

_ABSENT = {"outputMode": "append"}
"""What it means that a layout lacks something, where that is not nothing."""

SPREAD = "spread"
"""What a layout has if virtual nodes take turns at windows, where there are no keys to tell rows apart."""

EVENT_TIME = "eventTime"
"""What a layout has for the column of the event time, where its windows do not name it."""

_ADDED = (KIND, IDENTITY, SPREAD, EVENT_TIME)
"""Layouts that state was begun with before there were these do not have them."""

_KEPT = (IDENTITY, SPREAD, *_SETTINGS)
"""What state keeps as it was begun, and tasks have to know."""


def key_names(count: int) -> tuple[str, ...]:
    """What the columns of so many keys are called in what is packed and stored: those of users may come twice.

    Examples
    --------
    >>> key_names(2)
    ('k0', 'k1')
    """
    return tuple(f"k{place}" for place in range(count))


def result_names(count: int) -> tuple[str, ...]:
    """What the columns of results are called until they have left the operator: those of users may come twice.

    Examples
    --------
    >>> result_names(2)
    ('c0', 'c1')
    """
    return tuple(f"c{place}" for place in range(count))


def layout_id(layout: Layout) -> str:
    """A short name for a layout; equal layouts have equal names."""
    return hashlib.sha256(_text(layout)).hexdigest()[:12]


def as_stored(layout: Layout, *, updating: bool) -> Layout:
    """The layout of state in append or update mode, which store it in different ways."""
    return {**layout, IDENTITY: "siphash-2-4-128", **({"outputMode": "update"} if updating else {})}


def as_begun(layout: Layout, first: Layout) -> Layout:
    """A layout as state has it that was begun with another one, maybe by an earlier release, whose layouts say less."""
    found = {name: value for name, value in layout.items() if name not in _ADDED or name in first}
    if INSTANCES in layout and any(name in first for name in _SETTINGS):
        del found[INSTANCES]
        found |= {name: first[name] for name in _SETTINGS if name in first}
        if SPREAD in found and SPREAD in first:  # which tells the order of virtual nodes
            found[SPREAD] = first[SPREAD]
    if KIND not in first and kind_of(layout) == "global_window":
        found["window"] = found["window"].replace(", discarding)", ", purging)")  # as it was called then
    return found


def kept(first: Layout) -> Layout:
    """What tasks have to know of the layout with which state was begun."""
    return {name: first[name] for name in _KEPT if name in first}


def names(layout: Layout) -> Iterator[str]:
    """The name that a layout has, and then those that it had in earlier releases.

    State of one whose windows are spread is only where windows are, whatever else it lacks.
    """
    yield layout_id(layout)
    earlier: list[Layout] = [{SPREAD: "", **each} for each in ({}, {IDENTITY: ""}, {IDENTITY: "", KIND: ""})]
    forms = [as_begun(layout, first) for first in earlier]
    yield from (layout_id(each) for each in (_without_further_keys(layout), *forms, *map(_without_further_keys, forms)))


def _without_further_keys(layout: Layout) -> Layout:
    """A layout as an earlier release tells it, which has the keys of single patterns in the text of these alone."""
    kept = {text: {name: columns[name] for name in _read(columns)} for text, columns in layout["aggregates"].items()}
    return {**layout, "aggregates": kept}


def kind_of(layout: Layout) -> str:
    """The kind of an operator: the function that makes its windows, ``dedupe``, ``interval_join`` or ``continuous_join``."""
    if KIND in layout:
        return str(layout[KIND])
    named = re.match(r"\w+(?=\()", layout["window"])  # by an earlier release
    if named:
        return named[0]
    return "interval_join" if " join, interval of " in layout["window"] else "continuous_join"


def evolves(history: Sequence[Layout], layout: Layout) -> bool:
    """Whether a query may go on with state that has had some layouts.

    It may when nothing but aggregates differ from the last one, at least one has stayed, those that have read the columns
    that they read before, and no column has ever had a wider type. What is added starts as if its columns had been NULL
    until now. Joins keep their columns. Nothing takes the place of what may be the same in another spelling. ``count(x)`` is
    not replaced by the number of different values of ``x``: an earlier release wrote both so.
    """
    before = history[-1]
    if not _only_aggregates_differ(before, layout):
        return False
    old, new = before["aggregates"], layout["aggregates"]
    types = {name: kind for columns in new.values() for name, kind in columns.items()}
    had = [(name, kind) for form in history for columns in form["aggregates"].values() for name, kind in columns.items()]
    fits = all(widens(kind, types[name]) for name, kind in had if name in types)
    same_columns = all(_read(new[text]) <= _read(old[text]) for text in {*old} & {*new} if not _is_apply(text))
    counted = {text.replace(DISTINCT, "") for text in {*new} - {*old} if DISTINCT in text}
    columns_of_joins = [{text for text in form if not _is_join(text)} for form in (old, new) if any(map(_is_join, form))]
    same_join = not columns_of_joins or columns_of_joins[0] == columns_of_joins[-1]
    stays = _without_further_keys(before) == _without_further_keys(layout)
    told_apart = stays or not any(NAMESAKE in name for name in (*types, *dict(had)))
    respelled = next(_respelled(before, layout), None)
    return fits and same_columns and same_join and told_apart and not respelled and counted.isdisjoint({*old} - {*new})


def _only_aggregates_differ(before: Layout, layout: Layout) -> bool:
    """Whether nothing but aggregates differs, of which at least one has stayed."""
    new = layout["aggregates"]
    return {**before, "aggregates": new} == layout and not {*before["aggregates"]}.isdisjoint(new)


def _respelled(before: Layout, layout: Layout) -> Iterator[tuple[str, str]]:
    """Aggregates that went and others that came, as far as they may be the same: of other columns of such types.

    Patterns are told by their names and windows, so that nobody takes one for another.
    """
    if not _only_aggregates_differ(before, layout) or kind_of(layout) == "patterns":
        return
    old, new = before["aggregates"], layout["aggregates"]
    for gone, come in itertools.product(sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())):
        if gone.partition("(")[0] != come.partition("(")[0] or old[gone].keys() == new[come].keys() or _is_join(come):
            continue
        kinds = zip(old[gone].values(), new[come].values(), strict=False)  # count(*) has none
        if all(widens(one, other) or widens(other, one) for one, other in kinds):
            yield gone, come


def changed(root: Root, before: Layout, layout: Layout) -> LayoutChanged:
    """The error for state of a layout under a query that now has another one."""
    told = ({*before, *layout} - {*_ADDED}) | ({EVENT_TIME} & before.keys())
    told = {name for name in told if before.get(name) != layout.get(name)}
    if told - {_AGGREGATES, "pattern"} and evolves([before], {**before, _AGGREGATES: layout[_AGGREGATES]}):
        told.discard(_AGGREGATES)  # which are no reason
    joins = any(map(_is_join, before[_AGGREGATES])) or kind_of(before) in ("interval_join", "continuous_join")
    differences = "".join(_difference(name, before.get(name), layout.get(name), joins=joins) for name in sorted(told))
    distinct = [any(DISTINCT in text for text in each[_AGGREGATES]) for each in (before, layout)]
    advice = "Keys and aggregates are known by how they are written. "
    if joins:
        advice += "The columns of a join stay as they are. "
    elif kind_of(before) not in ("dedupe", "buffer") and told & {_AGGREGATES, "pattern"}:
        advice += (
            "Aggregates may be added and dropped as long as one stays and the pattern is the same, and columns may become "
            "wider. Operators that were alike when the query began have to be changed alike. "
        )
    if distinct == [False, True]:
        advice += "An earlier release may have meant count(...) as the number of different values, which cannot go on. "
    for gone, come in _respelled(before, layout):
        advice += (
            f"{come} may be {gone} in another spelling, which would begin with nothing. If it is, write it as before; if it "
            f"is another one, start the query without {gone} first, and with {come} when a micro-batch has been committed. "
        )
    return LayoutChanged(
        f"the state in {root.safe} was written by another operator:{differences}\n"
        f"{advice}Change the query back, or start it with a new checkpoint location."
    )


def _difference(name: str, before: Any, now: Any, *, joins: bool) -> str:
    """How something that a layout has differs; of a setting, also what to set. What ``joins`` has columns, no aggregates."""
    if name not in _SETTINGS:
        absent = _ABSENT.get(name, "none")
        if isinstance(before, dict) and isinstance(now, dict):
            name = f"{'columns' if joins else name} that differ"
            differing = {text for text in {*before, *now} if before.get(text) != now.get(text)}
            before, now = ({text: each[text] for text in differing & each.keys()} for each in (before, now))
        return f"\n  {name}: the checkpoint has {shown(before, absent)}, the query now has {shown(now, absent)}"
    if before is None and name != VNODES:  # what is set is the number of virtual nodes, of which the line of that tells
        return ""
    conf = f"spark.forebay.{name}"
    advice = f"unset {conf}" if before is None else f"set {conf} to {before}"
    had = "begun without it" if before is None else f"begun with {before}"
    return f"\n  {conf}: the checkpoint was {had}, the query now has {shown(now, 'none')}; {advice}"


def _read(columns: dict[str, str]) -> set[str]:
    """What an aggregate reads, but for its pattern's keys: its text has them, and earlier releases do not tell them."""
    return {name for name in columns if not name.startswith(FURTHER_KEY)}


def _is_apply(text: str) -> bool:
    """Whether a user's function is meant, alone or in a pattern, which is told before it."""
    return text.rpartition(": ")[2] == APPLY


def _is_join(text: str) -> bool:
    return text.startswith(JOIN)


def shown(value: Any, absent: str = "none") -> str:
    """Something that a layout has, as it is shown to users: aggregates with the columns that state has for them."""
    if value is None:
        return absent
    if not isinstance(value, dict):
        return str(value)
    read = {
        text: ", ".join(f"{name} {kind}" for name, kind in sorted(value[text].items()) if name != _SIDE)
        for text in sorted(value)
    }
    return "; ".join(f"{text} of {columns}" if columns else text for text, columns in read.items()) or absent


_SINCE = "since"
"""In the file of a later layout: the first micro-batch that ran with it. It counts when that one has been committed."""
_CHECK = "check"
"""There, too: the name that all else in the file would give a layout."""


def history(root: Root, name: str) -> list[Layout]:
    """The layouts that the state in a directory has had, the one that names it first."""
    return [layout for _, _, layout in _files(root, name)]


def settled_history(root: Root, name: str, committed: int) -> list[Layout]:
    """The same without a layout that no micro-batch up to the last one that Spark has ``committed`` has run with.

    The query may have been changed back since then, so that layout is forgotten.
    """
    found: list[Layout] = []
    forgotten: list[str] = []
    for path, since, layout in _files(root, name):
        if forgotten or since > committed:
            forgotten.append(path)
        else:
            found.append(layout)
    root.safe.delete(forgotten)
    return found


def _files(root: Root, name: str) -> Iterator[tuple[str, int, Layout]]:
    """The files of layouts in a directory, the first micro-batch that ran with each, and what they have."""
    yield f"{name}/{filenames.LAYOUT}", -1, read(root, name)
    for number in itertools.count(1):
        path = f"{name}/{filenames.LATER_LAYOUT.format(number)}"
        try:
            form = _parsed(root, path)
        except FileNotFoundError:
            return
        check = form.pop(_CHECK, None)
        if check not in (None, layout_id(form)):
            raise _unreadable(root, path, "its content is not what was written")
        yield path, form.pop(_SINCE, -1), form


def describe(root: Root, layout: Layout) -> str:
    """Write a layout where state of it is; gives the name of that directory."""
    name = layout_id(layout)
    if not (root.directory / name / filenames.LAYOUT).exists():
        for archive in filter(None, (root.archive, MountedArchive(root.directory))):
            archive.write(f"{name}/{filenames.LAYOUT}", _text(layout))
    return name


def record(root: Root, name: str, history: Sequence[Layout], layout: Layout, since: int) -> None:
    """Note that the state in a directory has a new layout from a micro-batch on, if that one is ever committed."""
    later = {**layout, _SINCE: since}
    root.safe.write(f"{name}/{filenames.LATER_LAYOUT.format(len(history))}", _text({**later, _CHECK: layout_id(later)}))


def read(root: Root, name: str) -> Layout:
    """The layout with that name."""
    path = f"{name}/{filenames.LAYOUT}"
    try:
        layout = _parsed(root, path)
    except FileNotFoundError as error:
        raise _unreadable(root, path, error) from error
    if layout_id(layout) != name:
        raise _unreadable(root, path, "its content is not that of its name")
    return layout


def _parsed(root: Root, path: str) -> Layout:
    try:
        layout: Layout = json.loads(root.safe.read(path))
    except ValueError as error:
        raise _unreadable(root, path, error) from error
    missing = {"window", "keys", "aggregates", "pattern"}.difference(layout) if isinstance(layout, dict) else {"all"}
    if missing:
        raise _unreadable(root, path, f"it lacks {', '.join(sorted(missing))}")
    return layout


def _unreadable(root: Root, path: str, reason: object) -> CorruptState:
    return CorruptState(f"{path} in {root.safe} cannot be read: {reason}. {RESTORE}")


def _text(layout: Layout) -> bytes:
    return json.dumps(layout, sort_keys=True, indent=1).encode()
