from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.mesh.program.allocations.link_report import LinkReport, Links, summarize
from monarch_hpc.testing import ManualClock
from monarch_hpc.transport.api import FrameChannel


@dataclass
class Line:
    """The attributes of a channel that a summary reads."""

    fabric: str
    why: str


def proc(rank: int, host: int) -> ProcRef:
    return ProcRef(mesh=1, rank=rank, host=f"n{host}", host_rank=host, pid=1, incarnation=100 + rank, addresses=())


def link(why: str) -> Links:
    return [{"host": 0, "fabric": "tcp", "why": why, "procs": 1}]


def test_procs_are_counted_by_host_and_fabric() -> None:
    lines = {
        100: Line("ucx/shm", "same host"),
        101: Line("ucx/shm", "same host"),
        102: Line("tcp", "another host"),
        103: Line("tcp", ""),
    }
    channels = {number: cast(FrameChannel, line) for number, line in lines.items()}
    assert summarize([proc(0, 0), proc(1, 0), proc(2, 1), proc(3, 1), proc(9, 2)], channels) == [
        {"host": 0, "fabric": "ucx/shm", "why": "same host", "procs": 2},
        {"host": 1, "fabric": "tcp", "why": "", "procs": 1},
        {"host": 1, "fabric": "tcp", "why": "another host", "procs": 1},
    ]


def test_one_report_tells_of_many_procs_and_the_same_is_told_once() -> None:
    clock, told, now = ManualClock(), list[Links](), link("no RDMA")
    report = LinkReport(clock.call_later, lambda: now, told.append)
    for _ in range(3):
        report.changed()
    clock.advance_to_next()
    assert (told, clock.timers) == ([now], [])
    report.changed()
    clock.advance_to_next()
    assert told == [now]


def test_while_the_two_sides_still_talk_it_looks_again_but_not_for_ever() -> None:
    clock, told, now = ManualClock(), list[Links](), link("")
    report = LinkReport(clock.call_later, lambda: now, told.append)
    report.changed()
    clock.advance_to_next()
    assert clock.timers
    now = link("same host")
    clock.advance_to_next()
    assert (told, clock.timers) == ([link(""), link("same host")], [])
    now = link("")
    report.changed()
    rounds = 0
    while clock.timers:
        clock.advance_to_next()
        rounds += 1
    assert rounds == 20
    assert told[-1] == link("the two sides had not connected a faster one after 10 s")
