"""Other hosts with the checkpoint behind them are an archive like others."""

import pytest
from loopback_hosts import hosts

from forebay.testing import ArchiveTests


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    with hosts(tmp_path_factory.mktemp("hosts")) as some:
        some.start(0)
        some.start(1)
        yield some


class TestReplicated(ArchiveTests):
    @pytest.fixture
    def archive(self, two_hosts, request):
        return two_hosts.archive(0, request.node.name)

    def open(self, tmp_path):
        raise AssertionError
