"""What rows are to be like when a store gives them, where some may have been stored otherwise."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import polars as pl
import pyarrow as pa

Merge = Callable[[pl.DataFrame], pl.DataFrame]
"""Merges rows of partial aggregates; the columns and their types stay."""


class Form(Protocol):
    """The columns of rows; `forebay.engine.stored_form.StoredForm` is one."""

    @property
    def id(self) -> Hashable:
        """Equal for equal forms."""

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A stored batch with exactly the columns and types of this form; an error of ours where that is not possible."""
