"""The UCX binding between two real processes, over each libucp of this machine."""

from __future__ import annotations

import pytest

from tests.ucx.installed import LIBRARIES, SHARED_MEMORY, TCP, run_drill

KINDS = ["records", "bulk", "rendezvous", "moves"]

TRANSPORTS = pytest.mark.parametrize("tls", [SHARED_MEMORY, TCP], ids=["shm", "tcp"])


def growth(printed: str) -> dict[str, int]:
    """Bytes by which the process grew, by kind of traffic."""
    return {name: int(grown) for name, grown, _seconds in (line.split() for line in printed.splitlines())}


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


# One completes most sends at once, the other in callbacks; all four together would take two minutes.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("libucp", "tls"),
    [
        pytest.param(library.values[0], tls, id=f"{library.id}-{name}", marks=library.marks)
        for library, tls, name in zip(LIBRARIES, (SHARED_MEMORY, TCP), ("shm", "tcp"), strict=True)
    ],
)
def test_a_million_messages_leak_nothing(libucp: str, tls: str) -> None:
    """The smallest block of malloc, once a message, would be 32 MB; 128 bytes a larger operation, 2.5 MB."""
    grown = growth(run_drill(tls, libucp, "grow", 1_000_000, timeout_s=300))
    assert list(grown) == KINDS
    assert max(grown.values()) < 2 * 2**20, grown
