"""Everything below needs a real Slurm, which `slurmlab` makes on this machine."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from monarch_hpc.testing.fixtures import slurmlab
from monarch_hpc.testing.slurmlab import SlurmLab
from monarch_hpc.testing.slurmlab.processes import read_command
from tests.command_server import CommandServer, open_on_login
from tests.conftest import held
from tests.slurm.commands import Standing

__all__ = ["lab", "slurmlab"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = f"{Path(__file__).parent}/"
    for item in items:  # those of all folders, some twenty thousand
        if str(item.path).startswith(folder):
            item.add_marker("slurm")


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """As for all tests, but a host that a test boots stays with the session's lab."""
    before = held()
    yield
    wait_until("nothing left behind", lambda: held() - before - _lab_hosts(), 30.0, accept=lambda left: not left)


def _lab_hosts() -> set[str]:
    children = (pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split())
    return {f"child process {pid}" for pid in children if "".join(read_command(int(pid))[:1]).startswith("slurmlab-")}


@pytest.fixture(scope="session")
def command_server(slurmlab: SlurmLab) -> Iterator[CommandServer]:
    """The process that runs alice's commands."""
    with open_on_login(slurmlab) as server:
        yield server


@pytest.fixture(scope="module")
def standing(slurmlab: SlurmLab, command_server: CommandServer, request: pytest.FixtureRequest) -> Iterator[Standing]:
    """The allocation that tests of a file share, one after the other."""
    standing = Standing(
        slurmlab, command_server, slurmlab.home() / f"standing-{zlib.crc32(request.node.nodeid.encode()):x}"
    )
    yield standing
    standing.give_back()


@pytest.fixture
def lab(slurmlab: SlurmLab, standing: Standing) -> Iterator[SlurmLab]:
    """The session's lab with idle hosts, mended and emptied after the test; files in homes stay.

    A host may have become suspect to Slurm since, where its slurmd stood still: Slurm would give others.
    """
    standing.give_back()
    slurmlab.wait_idle(120.0)
    yield slurmlab
    standing.give_back()
    slurmlab.reset()
