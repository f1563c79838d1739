"""What agents upload to the checkpoint while stores go on, whose kept versions change meanwhile."""

import threading
from collections import Counter

import pyarrow.fs as pafs
from loopback_hosts import LAYOUT, QUERY, append, wait_for

from forebay.replication import uploads
from forebay.replication.holdings import Holdings
from forebay.replication.uploads import Uploads
from forebay.store.aligned import AlignedStore
from forebay.store.options import Options
from forebay.store.remote_archive import RemoteArchive

INSTANCE = f"{QUERY}/{LAYOUT}/0-00000000"


def test_what_was_sent_of_a_version_that_has_gone_meanwhile_is_not_sent_again(tmp_path, monkeypatch):
    """Else an upload that takes longer than a micro-batch begins anew each time, with more each time."""
    store, sent, gone = AlignedStore(tmp_path / INSTANCE, None, ["k"], Options()), Counter(), []

    class Slow(RemoteArchive):
        def upload(self, directory, names):
            super().upload(directory, names[:-1])
            sent.update(names)
            if not gone:  # the store goes on until nobody keeps the version
                gone.append(names[-1])
                versions.extend(append(store, number) for number in range(5))
            super().upload(directory, names[-1:])

    monkeypatch.setattr(uploads, "archive_of", lambda *_: Slow(pafs.LocalFileSystem(), str(tmp_path / "safe"), "slow"))
    versions = [append(store, 0)]
    uploading = Uploads(Holdings(tmp_path), lambda instance, names: None)
    uploading.wish(INSTANCE, versions[0], ("safe", ""))
    wait_for(lambda: not uploading.pending)
    assert not (tmp_path / "safe" / gone[0]).exists()
    uploading.wish(INSTANCE, versions[-1], ("safe", ""))
    assert uploading.wait(INSTANCE, versions[-1], 60)
    assert AlignedStore(tmp_path / "safe", versions[-1], ["k"], Options()).base.version == versions[-1]
    assert set(sent.values()) == {1}


def test_an_upload_that_takes_long_holds_up_no_other_one(tmp_path, monkeypatch):
    """Where hosts are too few for replicas each commit waits for its own."""
    stores = [f"{QUERY}/{LAYOUT}/{number}-00000000" for number in range(3)]
    versions = {each: append(AlignedStore(tmp_path / each, None, ["k"], Options()), 0) for each in stores}
    hanging = threading.Event()

    def archive(place, instance):
        if instance == stores[0]:
            hanging.wait(60)
        return RemoteArchive(pafs.LocalFileSystem(), str(tmp_path / "safe" / instance), "there")

    monkeypatch.setattr(uploads, "archive_of", archive)
    uploading = Uploads(Holdings(tmp_path), lambda instance, names: None)
    for each in stores:
        uploading.wish(each, versions[each], ("safe", ""))
    for each in stores[1:]:
        assert uploading.wait(each, versions[each], 60)
    assert uploading.pending.total() == 1
    hanging.set()
    uploading.drain()
    assert uploading.pending.total() == 0
