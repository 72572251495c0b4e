"""The hosts that the tests of a file share, one after the other."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.agent_client import ENTRY, cookie_holders, standin_path

_PATIENCE_S = 60.0


class StandingHosts:
    """Two hosts with short grace periods for tests that leave them as they were, but for files of runs.

    Args:
        folder: for the directories of allocations.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened = contextlib.ExitStack()
        self._directory: Path | None = None
        self._number = 0

    def take(self) -> Path:
        """Return the allocation's directory."""
        if self._directory is None:
            self._number += 1
            config = load({"procs.stop_s": 1.0, "agent.grace_s": 1.0}).config
            directory = self._folder / f"allocation{self._number}"
            self._directory = self._opened.enter_context(open_local(2, config, directory, entry=ENTRY))
        return self._directory

    def check(self) -> None:
        """Check that a test left nothing on the hosts; otherwise the next test gets others."""
        try:
            wait_until("hosts without procs", self._seen, _PATIENCE_S, accept=([], [("alive", 0)] * 2).__eq__)
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """End the hosts, and check that nothing is left of them."""
        directory, self._directory = self._directory, None
        self._opened.close()
        if directory is not None:
            assert not directory.exists()
            wait_until("the end of its processes", lambda: cookie_holders(directory), accept=lambda left: not left)

    def _seen(self) -> tuple[list[dict[str, object]], list[tuple[object, object]]]:
        """The runs, and the state of each host with its number of procs."""
        assert self._directory is not None
        status = query_status(self._directory, _PATIENCE_S)
        assert status is not None, "the head does not answer"
        return status["runs"], [(host["state"], host["procs"]) for host in status["hosts"]]


@pytest.fixture(scope="module")
def standing_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingHosts]:
    """The hosts of this file's tests, as long as each leaves them as they were."""
    folder = tmp_path_factory.mktemp("standing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", standin_path(folder))
        hosts = StandingHosts(folder)
        hosts.take()  # before a test counts the processes that it leaves
        yield hosts
        hosts.give_back()


@pytest.fixture
def shared(standing_hosts: StandingHosts) -> Iterator[Path]:
    """The directory of an allocation of two hosts that other tests use, too."""
    yield standing_hosts.take()
    standing_hosts.check()


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """The id of a run, another one for each test."""
    return f"{zlib.crc32(request.node.nodeid.encode()):08x}"
