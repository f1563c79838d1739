"""What a task did for one store instance, as the driver shows it: see `forebay.spark.driver.metrics`."""

from __future__ import annotations

import itertools
import time

from forebay.store.manifest import Counters
from forebay.store.metrics import Metrics


def measured(
    counters: Counters, before: Counters, store: Metrics, store_before: Metrics, times: list[float]
) -> dict[str, float]:
    """Metrics of a task's work on one store instance: what has changed, and sizes.

    ``times`` are when it began, and when the instance was open, rows were taken, windows had fired and the version was
    committed, in seconds of `time.perf_counter`.
    """
    opening, ingest, fire, commit = (1000 * (end - begin) for begin, end in itertools.pairwise(times))
    done = {name: value - getattr(before, name) for name, value in vars(counters).items()}
    work = {name: value - getattr(store_before, name) for name, value in vars(store).items()}
    return {
        "began": 1000 * (time.time() - (time.perf_counter() - times[0])),
        "rowsIn": done["rows_in"],
        "rowsLate": done["rows_late"],
        "rowsPartlyLate": done["rows_partly_late"],
        "windowsFired": done["windows_fired"],
        "rowsOut": done["rows_out"],
        "rowsRead": work["reads"],
        "prefetchHits": work["hits"],
        "prefetchMisses": work["misses"],
        "prefetchedRows": work["prefetched_rows"],
        "prefetchedRowsUnused": work["unused_rows"],
        "evictedWindows": work["evictions"],
        "indexScans": work["index_scans"],
        "compactions": work["compactions"],
        "uploadTimeMs": 1000 * work["upload_seconds"],
        "uploadedBytes": work["uploaded_bytes"],
        "fetchTimeMs": 1000 * store.fetch_seconds,
        "fetchedBytes": store.fetched_bytes,
        "openTimeMs": opening,
        "loadTimeMs": opening + 1000 * (work["load_seconds"] - store_before.fetch_seconds),
        "ingestTimeMs": ingest,
        "fireTimeMs": fire,
        "commitTimeMs": commit,
        "stateBytes": store.disk_bytes,
        "stateLiveBytes": store.live_bytes,
        "storedEvents": store.events,
        "memoryBytes": store.memory_bytes,
    }
