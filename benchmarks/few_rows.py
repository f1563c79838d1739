"""What it costs one store of unaligned windows to read a few thousand windows from all over its state, without Spark.

    python benchmarks/few_rows.py [GB]

The state, 1.25 GB unless said otherwise, has windows with a row of 1,000 bytes each. A process of its own opens the store
when nothing of it is in memory, and reads `WINDOWS` windows drawn at random; then others, `AGAIN` times, with all files
opened anew each time, as in a micro-batch; and as often again when all files are in memory, if they fit. Printed are seconds
and MB that were read from disk for the key index, for where rows lie, and for the first windows, and the medians of the
milliseconds for the others. In a control group with less memory than state it shows what state larger than memory costs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay.store.filenames import Version
from forebay.store.unaligned import UnalignedStore
from forebay.windows import ENDLESS
from workloads import noise

WINDOWS, AGAIN = 5_000, 30
ROW_BYTES, AT_ONCE = 1_000, 62_500


def build(directory: Path, windows: int) -> Version:
    """A store of so many windows, in versions of `AT_ONCE`."""
    random = np.random.default_rng(1)
    store, version = UnalignedStore(directory, None), None
    for keys in np.array_split(random.permutation(windows), -(-windows // AT_ONCE)):
        rows = {"rows": keys, "number": keys, "payload": noise(random, len(keys), ROW_BYTES - 24)}
        store.append(pa.record_batch(rows), placed(store, keys))
        version = store.commit()
    assert version is not None
    return version


def placed(store: UnalignedStore, keys: np.ndarray) -> np.ndarray:
    """The windows of keys, which never end by themselves."""
    return store.index.place_merging(keys, keys, np.zeros_like(keys), np.full_like(keys, ENDLESS))


def measured(directory: Path, version: Version) -> None:
    """Read, in a process that has not had the store open."""
    os.sync()
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    warm = UnalignedStore(directory.parent / "another", None)  # imports and loads what is compiled
    placed(warm, np.arange(3))
    store, random = UnalignedStore(directory, version), np.random.default_rng(2)
    told = []

    def timed(name: str, action: Callable[[], object]) -> None:
        began, before = time.perf_counter(), disk_reads()
        action()
        told.append(f"{name} {time.perf_counter() - began:.2f} s, {(disk_reads() - before) / 1e6:.0f} MB")

    timed("key index", lambda: store.index)
    timed("where rows lie", lambda: store._load())
    windows = len(store.index)
    timed(f"{WINDOWS} windows", lambda: store.get(placed(store, random.choice(windows, WINDOWS, replace=False))))
    for state in ("others", "in memory"):
        times = []
        for _ in range(AGAIN):
            store.close()
            began = time.perf_counter()
            store.get(placed(store, random.choice(windows, WINDOWS, replace=False)))
            times.append(1000 * (time.perf_counter() - began))
        told.append(f"{state} {statistics.median(times):.0f} ms")
        for path in directory.iterdir():
            path.read_bytes()
    print(*told, sep="; ", flush=True)


def disk_reads() -> int:
    """Bytes that all disks have read."""
    lines = (path.read_text().split() for path in Path("/sys/block").glob("*/stat"))
    return sum(512 * int(words[2]) for words in lines)


def main() -> None:
    if len(sys.argv) == 3:
        measured(Path(sys.argv[1]), Version.parse(sys.argv[2]))
        return
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.25
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        directory = Path(scratch, "0")
        version = build(directory, round(gigabytes * 1e9 / ROW_BYTES))
        subprocess.run([sys.executable, __file__, str(directory), str(version)], check=True)


if __name__ == "__main__":
    main()
