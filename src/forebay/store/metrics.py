"""What a store has done since it was opened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Metrics:
    """Counts of one store instance since it was opened in this process; the sizes are those of now.

    Attributes
    ----------
    writes, reads : int
        Rows appended, and rows handed out.
    hits, misses : int
        Windows read whose rows on disk had been prefetched, and windows that had to be looked for on disk. Windows that
        never left the write buffer are neither.
    evictions : int
        Prefetched windows that were thrown out again: to make room, or because they merged with one that was not.
    prefetched_rows, prefetched_bytes, unused_rows : int
        What was read ahead of time, and how many rows of that were evicted without being read.
    index_scans : int
        How often rows were looked for on disk.
    compactions, zero_copy_bytes : int
        How often dead rows were cleared out, and bytes that moved to another file without passing through this process.
    disk_bytes, live_bytes : int
        Size of the files of the newest version, and of the rows in them that are still needed.
    memory_bytes : int
        Buffers and key index.
    events : int
        Events that are stored for several patterns together.
    uploaded_bytes, upload_seconds : int, float
        What was brought to where versions are safe, if not in the directory, and how long that took.
    load_seconds : float
        Time for reading the key index, and where the rows of windows lie, without that for getting files.
    fetched_bytes, fetch_seconds : int, float
        What came from there since the store was opened, or closed to be kept: bytes that were copied, and the time for what
        was linked, too. A handover of the Rhino paper fetches state (section 5.2.1).
    """

    writes: int = 0
    reads: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    prefetched_rows: int = 0
    prefetched_bytes: int = 0
    unused_rows: int = 0
    index_scans: int = 0
    compactions: int = 0
    zero_copy_bytes: int = 0
    disk_bytes: int = 0
    live_bytes: int = 0
    memory_bytes: int = 0
    events: int = 0
    uploaded_bytes: int = 0
    upload_seconds: float = 0.0
    load_seconds: float = 0.0
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0

    @property
    def hit_ratio(self) -> float:
        """Share of windows on disk that were in memory when they were needed; 1 when there were none."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 1.0

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(**{name: getattr(self, name) + value for name, value in vars(other).items()})
