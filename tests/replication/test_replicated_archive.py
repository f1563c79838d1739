"""Other hosts with the checkpoint behind them are an archive like others."""

import pytest
from loopback_hosts import hosts

from forebay.errors import ReplicationError
from forebay.replication import local
from forebay.replication.application import Application
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


def test_an_agent_that_cannot_be_started_is_told_of_as_one(tmp_path):
    nowhere = Application("nowhere", "manager.invalid:7077", "secret")
    with pytest.raises(ReplicationError, match="the agent of this host cannot be started"):
        local.agent_of(tmp_path, nowhere)
