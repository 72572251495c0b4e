"""Reports that an agent tells again to the head of a later term."""

from __future__ import annotations

from monarch_hpc.agent.succession.reports import Reports
from monarch_hpc.wire.control.kept import ProcsKept
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcLife, ProcReady, ProcsStopped, SpawnFailed
from monarch_hpc.wire.control.runs import RunClosed
from monarch_hpc.wire.proc_key import ProcKey


def ready(rank: int, run: str = "run", incarnation: str = "7") -> ProcReady:
    return ProcReady(ProcKey(run, 1, rank, 2), 4000, incarnation, ["tcp://10.1.0.2:9"])


def ended(rank: int, run: str = "run") -> ProcEnded:
    return ProcEnded(ProcKey(run, 1, rank, 2), False, "signal SIGSEGV", [])


def told(*messages: Message) -> list[Message]:
    reports = Reports()
    again: list[Message] = []
    for message in messages:
        reports.note(message)
    reports.tell_again(again.append)
    return again


def test_living_procs_and_the_last_ends_are_told_again() -> None:
    failed = SpawnFailed(ProcKey("run", 1, 3, 2), "no memory", [])
    stopped = ProcsStopped("run", 4, 2)
    life = ProcLife(ProcKey("run", 1, 0, 2), "suspect", 6.0, 15.0)
    assert told(ready(0), ready(1), life, ended(1), failed, stopped) == [ready(0), ended(1), failed, stopped]


def test_the_end_of_an_earlier_life_is_not_told_after_the_next_one() -> None:
    assert told(ready(0), ended(0), ready(0, incarnation="8")) == [ready(0, incarnation="8")]


def test_a_closed_run_is_forgotten() -> None:
    assert told(ready(0), ended(0), ready(0, "other"), RunClosed("run")) == [ready(0, "other")]


def test_what_is_kept_is_told_first_and_outlives_its_run() -> None:
    kept = ProcsKept("run", 1, "weights", 2, 2)
    assert told(ready(0), ready(1), kept, ended(1), RunClosed("run")) == [kept, ready(0), ended(1)]
    assert told(ready(0), kept, ended(0), ProcsStopped("run", 1, 2), RunClosed("run")) == []


def test_the_head_knows_the_procs_before_it_is_told_that_they_are_kept() -> None:
    reports, sent, kept = Reports(), list[Message](), ProcsKept("run", 1, "weights", 2, 2)
    for message in (ready(0), ProcReady(ProcKey("run", 2, 0, 2), 5, "8", []), kept):
        reports.pass_up(message, sent.append)
    assert sent[2:] == [ready(0), kept]
