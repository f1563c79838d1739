"""What the text of a plan tells: which operators of forebay it has, and which watermarks stand above them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forebay.spark.driver.query import operators
from forebay.spark.worker.clock import Clock
from forebay.store import filenames

_DEPTH = re.compile(r"(?:[ :]  )*[+:]- ")
"""What stands before a node in the text of a plan: three characters for each level."""

_WATERMARK = re.compile(r"['~]*EventTimeWatermark \S+, '?(.+?)(?:#\d+)?: ", re.DOTALL)

_RUNS = re.compile("['~]*TransformWithState")

_BLOBS = re.compile(rf"forebay_(?:batch_)?{filenames.LAYOUT_ID}#\d+")
"""The column of blobs of an operator, with the number that Spark has given it: no other operator has the same."""


def redefined(plan: str) -> str | None:
    """The column of a watermark that is defined above an operator of forebay which hands on one; None if there is none.

    Spark runs such a query for some micro-batches, in which no window fires, and then fails it. Operators that go by the
    wall clock hand on no watermark, and those without a time only one that they are given.
    """
    nodes = list(_nodes(plan))
    for place, (depth, node, above) in enumerate(nodes):
        if not any(operator.clock is not Clock.WALL for operator in operators(node)):
            continue
        columns = [found[1] for found in map(_WATERMARK.match, above) if found]
        for deep, other, _ in nodes[place + 1 :]:
            if deep <= depth:
                break
            if columns and _WATERMARK.match(other):
                return columns[-1]
    return None


def count(plan: str) -> int:
    """How many operators of forebay a plan runs over streams; one whose results are used twice is there twice."""
    return sum(_RUNS.match(node) is not None and bool(operators(node)) for _, node, _ in _nodes(plan))


def uppermost(plan: str) -> list[str]:
    """The columns of blobs of the operators that no other one of forebay reads."""
    found: dict[str, None] = {}
    for _, node, above in _nodes(plan):
        over = {column for each in above for column in _BLOBS.findall(each)}
        found |= {column: None for column in _BLOBS.findall(node) if over <= {column}}
    return list(found)


def _nodes(plan: str) -> Iterator[tuple[int, str, list[str]]]:
    """The nodes of a plan from the top down: how deep each is, its text, and the texts of those above it."""
    nodes: list[tuple[int, str]] = []
    for line in plan.split("\n"):
        prefix = _DEPTH.match(line)
        if prefix is not None or not nodes:
            depth = prefix.end() if prefix else 0
            nodes.append((depth, line[depth:]))
        else:  # a text in an expression has more than one line
            depth, node = nodes[-1]
            nodes[-1] = depth, f"{node}\n{line}"
    above: list[tuple[int, str]] = []
    for depth, node in nodes:
        while above and above[-1][0] >= depth:
            above.pop()
        yield depth, node, [each for _, each in above]
        above.append((depth, node))
