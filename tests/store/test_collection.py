"""Collection takes nothing that another attempt at a version still needs."""

import pyarrow as pa

from forebay.store import extent_log
from forebay.store.aligned import AlignedStore
from forebay.store.archive import MountedArchive
from forebay.store.manifest import Counters
from forebay.store.options import Options


def add(store, number):
    store.append(0, pa.record_batch({"k": ["a"], "v": [number]}))
    return store.commit(None, Counters(rows_in=number), number)


def values(store):
    return sorted(value for frame in store.get_window([0]) for value in frame["v"])


class Stalling(MountedArchive):
    """An archive that something happens to before it takes a manifest, once."""

    def __init__(self, path, meanwhile):
        super().__init__(path)
        self.meanwhile = [meanwhile]

    def upload(self, directory, names):
        super().upload(directory, names[:-1])
        if self.meanwhile:
            self.meanwhile.pop()()
        super().upload(directory, names[-1:])


def test_files_that_are_being_uploaded_stay_while_another_attempt_goes_on(tmp_path):
    def open_on(host, version, archive=None):
        archive = archive or MountedArchive(tmp_path / "safe")
        return AlignedStore(tmp_path / host, version, ["k"], Options(), archive=archive)

    store = open_on("a", None)
    for number in range(1, extent_log._COLLECTED_EVERY - 1):
        version = add(store, number)
    before = number

    def another_attempt_ends_and_the_next_micro_batch_collects():
        other = open_on("b", version)
        add(other, before + 1)
        assert add(other, before + 2).number == extent_log._COLLECTED_EVERY

    slow = open_on("c", version, Stalling(tmp_path / "safe", another_attempt_ends_and_the_next_micro_batch_collects))
    made = add(slow, before + 1)
    assert values(open_on("d", made)) == [*range(1, before + 2)]


def test_who_finds_manifests_gone_that_it_has_listed_collects_nothing(tmp_path, monkeypatch):
    def open_at(version):
        return AlignedStore(tmp_path / "0", version, ["k"], Options())

    first = add(open_at(None), 1)
    one, other = open_at(first), open_at(first)
    add(one, 2)
    add(other, 2)
    collectable, newest = extent_log.collectable, []

    def stalled(names, *arguments, **options):
        names = [*names]
        if not newest:
            newest.append(None)
            newest[:] = [add(other, number) for number in (3, 4, 5)]
        return collectable(names, *arguments, **options)

    monkeypatch.setattr(extent_log, "collectable", stalled)
    add(one, 3)
    assert values(open_at(newest[-1])) == [1, 2, 3, 4, 5]
