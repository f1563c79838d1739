"""Limits of a store instance."""

from __future__ import annotations

from dataclasses import dataclass

_LARGEST_BUFFER = 1 << 30

_LOAD_FACTOR = 4
"""Memory that grouping loaded rows takes, as a multiple of their size on disk."""


@dataclass(frozen=True)
class Options:
    """Limits of one store instance.

    Parameters
    ----------
    memory_bytes : int
        What buffered writes, prefetched rows, or one loaded partition of a window may take.
    retain_versions : int
        How many of the newest versions stay readable; at least 2, the committed one and the one being written. Where an
        attempt at the committed one may go on after others have begun the next, 3: it needs the one before.
    write_buffer_bytes : int
        Rows are written to disk when so many bytes of them wait; a quarter of the memory unless given, and 1 GiB at most: a
        column of texts in Arrow's usual form has no more than twice as much.
    prefetch_bytes : int
        What rows may take that are read ahead of time; a quarter of the memory unless given, and 1 GiB at most.
    read_batch_ratio : float
        The share of all open windows that is read ahead of time when a window has to be read from disk (FlowKV, section
        4.2). 0 switches prediction off.
    max_space_amplification : float
        Bytes on disk over live bytes above which a store is compacted (FlowKV, section 4.2); more than 1.
    kept_bytes : int
        What the stores of unaligned windows may take that a process keeps from one micro-batch to the next; with 0 that
        follows from the memory that there is, and is ``memory_bytes`` at least.

    Raises
    ------
    ValueError
        For a limit that no store can keep.
    """

    memory_bytes: int = 256 << 20
    retain_versions: int = 2
    write_buffer_bytes: int = 0
    read_batch_ratio: float = 0.02
    max_space_amplification: float = 1.5
    kept_bytes: int = 0
    prefetch_bytes: int = 0

    @property
    def load_bytes(self) -> int:
        """Rows of this size can be loaded and grouped within the memory: grouping takes several times as much."""
        return self.memory_bytes // _LOAD_FACTOR

    def __post_init__(self) -> None:
        if self.memory_bytes < 1 << 20:
            raise ValueError(f"memory_bytes is {self.memory_bytes}; a store needs at least 1 MiB")
        if self.retain_versions < 2:
            raise ValueError(f"retain_versions is {self.retain_versions}; at least 2 are needed to recover")
        if not 0 <= self.read_batch_ratio <= 1:
            raise ValueError(f"read_batch_ratio is {self.read_batch_ratio}; it is a share, between 0 and 1")
        if not self.max_space_amplification > 1:
            raise ValueError(f"max_space_amplification is {self.max_space_amplification}; it must be more than 1")
        if not 0 <= self.write_buffer_bytes <= self.memory_bytes:
            raise ValueError(f"write_buffer_bytes is {self.write_buffer_bytes}; it must fit into memory_bytes")
        most = min(self.write_buffer_bytes or self.memory_bytes // 4, _LARGEST_BUFFER)
        object.__setattr__(self, "write_buffer_bytes", most)
        most = min(self.prefetch_bytes or self.memory_bytes // 4, _LARGEST_BUFFER)
        object.__setattr__(self, "prefetch_bytes", most)
