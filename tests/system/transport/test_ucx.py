"""The UCX binding between two real processes, over each libucp of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.support.endings import run_endings
from tests.system.support.parties import RDMA
from tests.ucx.device import MISSING
from tests.ucx.installed import CUDA, LIBRARIES, SHARED_MEMORY, TCP, run_drill

KINDS = ["records", "bulk", "rendezvous", "moves"]

TRANSPORTS = pytest.mark.parametrize("tls", [SHARED_MEMORY, TCP], ids=["shm", "tcp"])


def growth(printed: str) -> dict[str, tuple[int, int]]:
    """Parse the growth of the heap and of the whole process in bytes, by kind of traffic."""
    lines = (line.split() for line in printed.splitlines())
    return {name: (int(heap), int(process)) for name, heap, process, _seconds in lines}


@TRANSPORTS
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_traffic_of_every_kind(libucp: str, tls: str) -> None:
    assert list(growth(run_drill(tls, libucp, "grow", 2000))) == KINDS


@pytest.mark.slow
@TRANSPORTS
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_a_forked_child_neither_uses_nor_breaks_it(libucp: str, tls: str) -> None:
    assert "went on" in run_drill(tls, libucp, "fork")


@TRANSPORTS
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_it_goes_on_where_no_thread_of_python_drives(libucp: str, tls: str) -> None:
    assert "went on" in run_drill(tls, libucp, "away")


@TRANSPORTS
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_a_driver_that_sleeps_lets_the_thread_sleep(libucp: str, tls: str) -> None:
    assert int(run_drill(tls, libucp, "idle")) < 10


@pytest.mark.parametrize("fabric", ["ucx-shm", "ucx-tcp", *RDMA])
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_an_end_in_any_state_is_an_end_in_good_order(libucp: str, fabric: str) -> None:
    assert run_endings(libucp, fabric, 8) == ["0 abandoned", "ended in good order"]


@TRANSPORTS
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_memory_is_taken_back_while_a_message_arrives_in_it(libucp: str, tls: str) -> None:
    num_whole, num_amid = map(int, run_drill(tls, libucp, "withdraw", program="withdrawal").split())
    assert num_whole and num_amid


@TRANSPORTS
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_a_program_may_end_with_everything_open(libucp: str, tls: str) -> None:
    assert run_drill(tls, libucp, "leave").startswith("left\n")


@TRANSPORTS
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_a_program_may_close_the_descriptor_of_ucx(libucp: str, tls: str) -> None:
    assert run_drill(tls, libucp, "lost") == "told True\n"


# Four seconds: each of sixteen ends waits for the frozen peer. Over shared memory none does.
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_a_frozen_peer_does_not_hold_an_end_up_and_costs_a_bounded_number_of_workers(libucp: str) -> None:
    seen = json.loads(run_drill(TCP, libucp, "frozen").splitlines()[-1])
    assert seen["full"] == 16 and "16 closed UCX workers" in seen["refused"]
    assert 0.2 < seen["longest_s"] < 60.0
    assert seen["left"] == 0, "the peer has died, so they could be destroyed"


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("device", [0, 1], ids=["to host memory", "to GPU memory"])
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_memory_of_a_gpu_goes_to_another_process(libucp: str, device: int) -> None:
    if not any(Path(libucp).parent.glob("ucx/libuct_cuda.so*")):
        pytest.skip("needs a libucp with CUDA")
    assert "the same" in run_drill(CUDA, libucp, "gpu", device)


# One completes most sends at once, the other in callbacks.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("libucp", "tls"),
    [
        pytest.param(library.values[0], tls, id=f"{library.id}-{name}", marks=library.marks)
        for library, tls, name in zip(LIBRARIES, (SHARED_MEMORY, TCP), ("shm", "tcp"), strict=True)
    ],
)
def test_messages_by_the_hundred_thousand_leak_nothing(libucp: str, tls: str) -> None:
    """malloc's smallest block, leaked once a message, would be 3.2 MB; 32 bytes per larger operation, 64 KiB."""
    grown = growth(run_drill(tls, libucp, "grow", 100_000, timeout_s=300))
    assert list(grown) == KINDS
    assert max(heap for heap, _ in grown.values()) < 64 * 2**10, grown
    # What does not come from malloc: a mapping.
    assert max(process for _, process in grown.values()) < 2 * 2**20, grown
