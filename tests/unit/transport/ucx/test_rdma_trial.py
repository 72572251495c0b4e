"""The trial of RDMA, on a machine that has none: its child fails, and says so once for all processes."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from monarch_hpc.transport.ucx.machine import read_machine
from monarch_hpc.transport.ucx.rdma_trial import find_rdma_fault

NO_LIBRARY = "/there/is/no/libucp.so"
needs_rdma = pytest.mark.skipif(not read_machine().rdma, reason="needs InfiniBand or RoCE; `make rdma-lab` emulates it")
VARIABLES = {"UCX_TLS": "self,posix,ib"}


@pytest.mark.slow
def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    fault = find_rdma_fault(NO_LIBRARY, VARIABLES, os.environ, "")
    assert fault.startswith("UCX's trial of RDMA failed, exit code 1 (") and "UCX_IB_GID_INDEX" in fault


@pytest.mark.slow
def test_the_processes_of_a_host_share_one_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(find_rdma_fault(NO_LIBRARY, VARIABLES, os.environ, str(tmp_path))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (left,) = tmp_path.iterdir()
    assert found == [left.read_text()] * 8
    assert stat.S_IMODE(left.stat().st_mode) == 0o600
    left.write_text("what the first process found")
    assert find_rdma_fault(NO_LIBRARY, VARIABLES, os.environ, str(tmp_path)) == "what the first process found"
    left.write_text("passed")
    assert not find_rdma_fault(NO_LIBRARY, VARIABLES, os.environ, str(tmp_path))
    monkeypatch.setenv("UCX_IB_GID_INDEX", "3")
    assert "exit code 1" in find_rdma_fault(NO_LIBRARY, VARIABLES, os.environ, str(tmp_path))


@pytest.mark.slow
def test_a_folder_that_is_gone_is_no_obstacle(tmp_path: Path) -> None:
    assert "exit code 1" in find_rdma_fault(NO_LIBRARY, VARIABLES, os.environ, str(tmp_path / "gone"))


@pytest.mark.slow
@needs_rdma
def test_a_network_that_delivers_passes() -> None:
    assert not find_rdma_fault("", VARIABLES, os.environ, "")


@pytest.mark.slow
@needs_rdma
def test_an_address_that_is_not_routed_is_a_fault() -> None:
    assert "UCX_IB_GID_INDEX" in find_rdma_fault("", VARIABLES, {**os.environ, "UCX_IB_GID_INDEX": "1"}, "")
