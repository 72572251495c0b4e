"""Kinds of deaths: words that other versions may send, the ends of processes, and what errors tell of them."""

from __future__ import annotations

import pickle

import pytest

from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import ActorDied, HostLost
from monarch_hpc.core.errors.joined import join_failures
from monarch_hpc.core.process.exit import Exit


def test_every_kind_is_read_back_and_a_strange_word_is_unknown() -> None:
    assert [DeathKind.parse(kind.value) for kind in DeathKind] == list(DeathKind)
    assert DeathKind.parse("meteorite") is DeathKind.UNKNOWN
    assert str(DeathKind.TIME_LIMIT) == "time-limit", "it is shown as its word"


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        (Exit(0, None), "exit", "exit code 0"),
        (Exit(3, None), "exit", "exit code 3"),
        (Exit(None, 11), "signal", "signal 11 (SIGSEGV)"),
        (Exit(None, 9), "signal", "signal 9 (SIGKILL)"),
        (Exit(None, 9, oom=True), "oom", "out of memory: the kernel killed it with signal 9 (SIGKILL)"),
    ],
)
def test_the_end_of_a_process(how: Exit, kind: str, words: str) -> None:
    assert (Death.of_exit(how).kind, Death.of_exit(how).cause) == (kind, words)


def test_an_error_tells_kind_host_rank_and_last_lines_also_after_a_journey() -> None:
    death = Death(DeathKind.NODE_FAILURE, "host n2 is lost", "n2", 3, ("last words",), host_lost=True)
    error = pickle.loads(pickle.dumps(HostLost("rank 3", death)))
    assert (error.kind, error.host, error.rank, error.last_lines) == ("node-failure", "n2", 3, ("last words",))
    assert (error.cause, str(error)) == ("host n2 is lost", "rank 3 died: host n2 is lost")


def test_a_cause_in_words_alone_is_of_no_known_kind() -> None:
    error = ActorDied("a[0]", "exit code 3")
    assert (error.kind, error.cause, error.host, error.rank) == ("unknown", "exit code 3", "", -1)


def test_the_error_of_a_call_has_the_kind_of_its_first_death() -> None:
    died = {rank: HostLost(f"rank {rank}", Death(DeathKind.PREEMPTED, "preempted", "n1", rank)) for rank in (2, 5)}
    joint = join_failures("step", died)
    assert isinstance(joint, HostLost) and (joint.kind, joint.host, joint.rank) == ("preempted", "n1", 2)
