"""An attempt stalls on a host, others go on elsewhere, and it publishes its version after all; then its host is lost."""

import shutil

import pyarrow as pa
from loopback_hosts import append, hosts, values, wait_for

from forebay.spark.driver.conf import Conf
from forebay.store import extent_log
from forebay.store.aligned import AlignedStore
from forebay.store.options import Options


def test_its_version_can_be_opened_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(extent_log, "LEAST_COMPACTED", 0)
    monkeypatch.setattr(extent_log, "_COLLECTED_EVERY", 4)
    retained = Conf().options.retain_versions
    lazy = Options(retain_versions=retained, max_space_amplification=1e9)  # it keeps what another attempt compacts
    with hosts(tmp_path, replicas=1) as some:
        some.start(0)
        some.start(1)

        def opened(host, version, options=lazy):
            return AlignedStore(some.disk(host) / "work" / "0-00000000", version, ["k"], options, archive=some.archive(host))

        def go_on(store, begin, end):
            version = append(store, *range(begin, end))
            wait_for(lambda: any(some.safe.rglob(f"{version}.manifest")))
            return version

        first = opened(0, None)
        for slice_ in (10, 20, 30):
            first.append(slice_, pa.record_batch({"k": ["x"] * 500, "v": list(range(500))}))
        go_on(first, 0, 50)
        first.drop([10, 20, 30])
        base = go_on(first, 50, 60)
        first.close()
        stalled, other = opened(0, base), opened(1, base, Conf().options)
        go_on(other, 60, 70)
        go_on(other, 70, 80)
        other.close()
        made = go_on(stalled, 60, 70)
        stalled.close()
        some.kill(0)
        shutil.rmtree(some.disk(0))
        assert values(opened(1, made)) == list(range(70))
