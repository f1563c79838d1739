"""An aggregate bound to the columns of a packed batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

HOLISTIC = frozenset({"median", "percentile", "mode", "collect_list", "collect_set", "count_distinct"})
"""Functions that need all rows of a window at once, unless values are counted."""

COUNTED = "counted"
"""The option of such a function that has its state be how often each value came (`forebay.aggregates.counted`)."""


@dataclass(frozen=True)
class BoundAggregate:
    """An aggregate with the names and types of what it reads and gives.

    Attributes
    ----------
    label : str
        The result column.
    function : str
        The function's name.
    inputs : tuple of str
        Input columns of the packed batch.
    input_types : tuple of pyarrow.DataType
        Their types.
    result : pyarrow.DataType
        The type of the result column.
    options : mapping
        The function's other arguments, and ``ansi``: whether overflow is an error.
    """

    label: str
    function: str
    inputs: tuple[str, ...]
    input_types: tuple[pa.DataType, ...]
    result: pa.DataType
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def counted(self) -> bool:
        """Whether the state is how often each value came."""
        return COUNTED in self.options
