"""A machine's crash at any change of a file: the version before is whole, and the batch that is run again is right."""

import functools
import itertools
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from faults import ANYTHING, EVERYTHING, NOTHING, Crash, Disk

from forebay.engine.instance import Opening
from forebay.engine.plan import END_OF_TIME, NEVER
from forebay.engine.shared import SharedInstance
from forebay.errors import CorruptState, VersionNotFound
from forebay.store import extent_groups, extent_log, index_log, open_stores, segments, window_extents
from forebay.store.aligned import AlignedStore
from forebay.store.archive import MountedArchive
from forebay.store.disk import LOCAL, Together
from forebay.store.filenames import version_of
from forebay.store.manifest import Counters
from forebay.store.options import Options
from forebay.store.rmw import open_rmw
from forebay.store.unaligned import SLOT, UnalignedStore
from test_shared_patterns import packed, shared

BEFORE = 10
"""Batches before the one that crashes; by then extents are combined and files are compacted and collected."""
ROWS = 60


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    for name, value, module in (
        ("SEGMENT_BYTES", 3000, segments),
        ("MAX_EXTENTS", 3, extent_groups),
        ("LEAST_COMPACTED", 500, extent_log),
    ):
        monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(window_extents, name, value)
    monkeypatch.setattr(index_log, "_LEAST_CHANGES", 100)
    monkeypatch.setattr(extent_log, "_COLLECTED_EVERY", 1)


def batch_of(number):
    values = np.arange(number * ROWS, (number + 1) * ROWS)
    return pa.record_batch({"user": [str(v % 7) for v in values], "n": pa.array(values)})


class Lists:
    """The AAR store. Every batch adds to three slices and drops the oldest."""

    def open(self, directory, version, archive, disk=LOCAL):
        return AlignedStore(directory, version, ["user"], OPTIONS, archive=archive, disk=disk)

    def run(self, store, number):
        for part in range(3):
            store.append(number + part, batch_of(number).slice(part * 20, 20))
        store.drop([number - 2])
        return store.commit(number, Counters(rows_in=number))

    def content(self, store):
        return {s: sorted(row for part in store.get_window([s]) for row in part.rows()) for s in store.slices.tolist()}


class Sums(Lists):
    """The RMW store of aligned windows."""

    def open(self, directory, version, archive, disk=LOCAL):
        return open_rmw(directory, version, ["user"], self.merge, OPTIONS, archive, disk=disk)

    @staticmethod
    def merge(rows):
        return rows.group_by("user", *([c] if (c := "slice") in rows.columns else [])).agg(pl.col("n").sum())

    def content(self, store):
        return {s: sorted(self.merge(pl.concat(store.get_window([s]))).rows()) for s in store.slices.tolist()}


class Sessions:
    """The unaligned store. Sessions of forty keys come, merge and go."""

    merge = None

    def open(self, directory, version, archive, disk=LOCAL):
        return UnalignedStore(directory, version, OPTIONS, self.merge, archive, disk=disk)

    def run(self, store, number):
        keys = np.random.default_rng(number).integers(0, 40, ROWS)
        starts = number * 10 + np.sort(np.random.default_rng(number + 100).integers(0, 10, ROWS))
        store.append(batch_of(number).drop_columns(["user"]), store.index.place_merging(keys, keys, starts, starts + 8))
        due = store.index.due(number * 10)
        store.get(due)
        store.remove(due)
        return store.commit(number, Counters(rows_in=number))

    def content(self, store):
        live = store.index.live()
        rows, windows = store.get(live), store.index.windows(live).tolist()
        return {
            (int(store.index.records["high"][slot]), *window): self.of(rows.filter(pl.col(SLOT) == slot)["n"].to_list())
            for slot, window in zip(live.tolist(), windows, strict=True)
        }

    def of(self, values):
        return sorted(values)


class Totals(Sessions):
    """The RMW store of unaligned windows."""

    @staticmethod
    def merge(rows):
        return rows.group_by(SLOT).agg(pl.col("n").sum())

    def of(self, values):
        return sum(values)


class Patterns:
    """The stores of several patterns over the same events: aligned windows, references and partial aggregates in one log."""

    NAMES = "sliding list", "visits", "every three", "total of four", "tumbling total"

    def open(self, directory, version, archive, disk=LOCAL):
        open_stores.forget(directory)  # as after a restart
        fired_until = NEVER if version is None else (version.number - 1) * 10
        return SharedInstance(shared(self.NAMES), Opening(directory, version, fired_until, archive, disk))

    def run(self, instance, number):
        random = np.random.default_rng(number)
        times, keys = random.integers(number * 10 - 15, number * 10 + 15, ROWS), random.integers(0, 9, ROWS)
        rows = [(time, str(key), number * ROWS + place) for place, (time, key) in enumerate(zip(times, keys, strict=True))]
        instance.ingest(packed(self.NAMES, rows))
        fired = list(instance.fire(number * 10))
        assert fired or number < 3
        return instance.commit(number)

    def content(self, instance):
        return sorted(str(row) for batch in instance.fire(END_OF_TIME) for row in batch.to_pylist())


OPTIONS = Options(memory_bytes=1 << 20, read_batch_ratio=0.2)
KINDS = {"AAR": Lists, "AUR": Sessions, "RMW": Sums, "RMW of sessions": Totals, "patterns": Patterns}


def versions(kind, directory, archive, numbers, version=None, disk=LOCAL, together=False):
    """Batches one after another, each on a store that is opened anew, as after a restart."""
    for number in numbers:
        used = Together(disk) if together else disk
        store = kind.open(directory, version, archive, used)
        version = kind.run(store, number)
        store.close()
        if together:
            used.settle()
    return version


@functools.cache
def expected(name, number):
    """What a store has after a batch when nothing ever crashes."""
    with tempfile.TemporaryDirectory() as directory:
        kind = KINDS[name]()
        version = versions(kind, Path(directory) / "0", None, range(number + 1))
        return kind.content(kind.open(Path(directory) / "0", version, None))


@pytest.mark.parametrize("place", ["in place", "archived", "together"])
@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, 61 if name == "patterns" else 7) for name in KINDS),
        *(pytest.param(name, 7 if name == "patterns" else 1, marks=pytest.mark.slow) for name in KINDS),
    ],
)
def test_a_crash_at_any_change(tmp_path, name, place, every):
    kind, pick = KINDS[name](), random.Random(name)
    archived, together = place == "archived", place == "together"
    for crash_at in itertools.count(pick.randrange(every), every):
        root = tmp_path / "disk"
        root.mkdir()
        disk = Disk(root)
        directory, archive = root / "node" / "0", MountedArchive(root / "safe" / "0", disk) if archived else None
        base = versions(kind, directory, archive, range(BEFORE), disk=disk, together=together)
        disk.changes, disk.crash_at = 0, crash_at
        try:
            after = versions(kind, directory, archive, [BEFORE], base, disk, together)
        except Crash:
            after = None
        crashed = after is None
        for left in (NOTHING, EVERYTHING, ANYTHING):
            disk.image(tmp_path / "left", left, pick)
            if archived and pick.random() < 0.7:
                shutil.rmtree(tmp_path / "left" / "node", ignore_errors=True)  # another node goes on
            there = tmp_path / "left" / "node" / "0"
            safe = MountedArchive(tmp_path / "left" / "safe" / "0") if archived else None
            if not crashed:
                assert kind.content(kind.open(there, after, safe)) == expected(name, BEFORE)
            elif left != ANYTHING:
                for path in (tmp_path / "left").rglob("*.manifest"):
                    require_whole_or_refused(kind, name, there, path, safe)
            assert kind.content(kind.open(there, base, safe)) == expected(name, BEFORE - 1), (crash_at, left)
            again = versions(kind, there, safe, [BEFORE], base)
            assert kind.content(kind.open(there, again, safe)) == expected(name, BEFORE), (crash_at, left)
        shutil.rmtree(root)
        if not crashed:
            assert crash_at > 12  # it was tried at many changes
            return


def require_whole_or_refused(kind, name, directory, manifest, archive):
    """Nobody opens a version whose commit did not return; whoever did would get all of it or an error."""
    version = version_of(manifest.name)
    try:
        content = kind.content(kind.open(directory, version, archive))
    except (CorruptState, VersionNotFound):
        return
    assert content == expected(name, version.number - 1), version
