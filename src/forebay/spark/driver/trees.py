"""Spark's plans and expressions in the JVM, as trees that Python can walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def elements(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.length())]


def subtree(node: Any) -> Iterator[Any]:
    """A node of a plan or of an expression, and all that are below it, from the top down and from left to right."""
    yield node
    for child in elements(node.children()):
        yield from subtree(child)
