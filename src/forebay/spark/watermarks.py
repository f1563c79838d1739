"""Watermarks as a plan has them: results of operators have the one of their input, and can have no other."""

from __future__ import annotations

import re

from forebay.spark import checkpoint

_DEPTH = re.compile(r"(?:[ :]  )*(?:[+:]- )?")
"""What stands before a node in the text of a plan: three characters for each level."""

_WATERMARK = re.compile(r"['~]*EventTimeWatermark \S+, '?(.+?)(?:#\d+)?: ")


def redefined(plan: str) -> str | None:
    """The column of a watermark that is defined above an operator of forebay, in the text of a plan; None if there is none.

    Spark runs such a query for some micro-batches, in which no window fires, and then fails it.
    """
    above: list[tuple[int, str]] = []  # depth and column of the watermarks that a line is below
    for line in plan.splitlines():
        prefix = _DEPTH.match(line)
        assert prefix is not None
        depth, node = prefix.end(), line[prefix.end() :]
        while above and above[-1][0] >= depth:
            above.pop()
        if above and checkpoint.operators(node):
            return above[-1][1]
        found = _WATERMARK.match(node)
        if found:
            above.append((depth, found[1]))
    return None
