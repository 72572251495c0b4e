"""This process as the controller of an embedded allocation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE, RUN_VARIABLE
from monarch_hpc.config.schema import Config
from monarch_hpc.core.ids import new_run_id
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.mesh.program.query import kept_questions
from monarch_hpc.testing import wait_until

__all__ = ["SharedHosts", "controlled", "controlling", "keep_channels", "settle"]


@contextlib.contextmanager
def controlled(config: Config, num_hosts: int = 2) -> Iterator[HostMesh]:
    """An allocation of *num_hosts* embedded hosts, with this process as its controller."""
    with open_local(num_hosts, config) as directory, controlling(directory, "feedbeef") as hosts:
        yield hosts


class SharedHosts:
    """Embedded allocations of the default configuration that files use in turn, each for a run of its own.

    Starting a host takes longer than many a file's tests. A file whose tests end or alter hosts has its own.

    Args:
        resources: get the allocations.
    """

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self._resources = resources
        self._opened: list[tuple[int, Config, Path]] = []

    @contextlib.contextmanager
    def controlled(self, num_hosts: int = 2) -> Iterator[HostMesh]:
        """*num_hosts* hosts, with this process as their controller; all procs have ended after it."""
        config = load().config
        found = (directory for num, like, directory in self._opened if (num, like) == (num_hosts, config))
        directory = next(filter(Path.exists, found), None)
        if directory is None:
            directory = self._resources.enter_context(open_local(num_hosts, config))
            self._opened.append((num_hosts, config, directory))
        with controlling(directory, new_run_id()) as hosts:
            yield hosts


@contextlib.contextmanager
def controlling(directory: Path, run: str) -> Iterator[HostMesh]:
    """The hosts of the allocation in *directory*, with this process as the controller of *run*."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DIRECTORY_VARIABLE, str(directory))
        patch.setenv(RUN_VARIABLE, run)
        Controller.instance()
        try:
            yield monarch_hpc.hosts()
        finally:
            Controller.instance().close()


def keep_channels() -> None:
    """Open the channels to heads that questions in SQL keep: these must not count as a leak of a test, either."""
    controller = Controller.instance()
    for tenancy in controller.tenancies.all():
        with kept_questions(controller).head(tenancy.directory) as head:
            assert query_status(head, 60.0) is not None


def settle(procs: ProcMesh) -> None:
    """Wait until the fabrics of *procs* are chosen.

    The first procs start UCX in this process, which keeps running: its open files must not count as a leak of a test.
    """
    channels = [Controller.instance().node.channels[proc.incarnation] for proc in procs.procs]
    wait_until("the choice of fabrics", lambda: all(channel.why for channel in channels))
    casts = Controller.instance().casts
    if len(procs) > casts.max_direct:
        route = casts.route_to(procs.procs[0].allocation)
        assert route is not None and route.connect()  # stays, too
