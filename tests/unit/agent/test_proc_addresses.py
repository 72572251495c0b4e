"""Listening addresses of procs, as an agent knows them."""

from __future__ import annotations

from monarch_hpc.agent.proc_addresses import ProcAddresses
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady
from monarch_hpc.wire.control.runs import RunClosed
from monarch_hpc.wire.proc_key import ProcKey


def ready(rank: int, host: int) -> ProcReady:
    key = ProcKey("aaaaaaaa", 1, rank, host)
    return ProcReady(key, 4000 + rank, str(100 + rank), [f"tcp://10.0.0.{host}:{rank + 1}"])


def test_procs_are_known_from_ready_to_their_end() -> None:
    book = ProcAddresses()
    book.note(ready(0, 1))
    book.note(ready(1, 2))
    assert book.addresses(100) == ["tcp://10.0.0.1:1"]
    book.note(ProcEnded(ProcKey("aaaaaaaa", 1, 0, 1), True, "signal 15 (SIGTERM)", []))
    book.note(RunClosed("aaaaaaaa"))
    assert (book.addresses(100), book.addresses(101)) == (None, ["tcp://10.0.0.2:2"])


def test_a_lost_host_takes_its_procs_along() -> None:
    book = ProcAddresses()
    for rank in range(4):
        book.note(ready(rank, rank // 2))
    assert book.lose_host(1) == [102, 103]
    assert [book.addresses(100 + rank) is None for rank in range(4)] == [False, False, True, True]
