"""The threads of actors: the choice of a thread for each, where more actors have work than threads are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from monarch_hpc.actor.execution.threads import ActorThread, ActorThreads, Threaded
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.engine.engine import Engine

_KEEP = 3
_PATIENCE_S = 30.0


class Guest(Threaded):
    """Has no work unless told so."""

    ended = False

    def __init__(self, threads: ActorThreads) -> None:
        super().__init__(threads, "guest")
        self.has_work = False

    def due(self) -> bool:
        """See `Threaded.due`."""
        return self.has_work

    def next_s(self) -> float | None:
        """See `Threaded.next_s`."""
        return _PATIENCE_S

    def work(self) -> None:
        """See `Threaded.work`."""

    def break_off(self, error: BaseException) -> None:
        """See `Threaded.break_off`."""


@pytest.fixture
def threads() -> Iterator[ActorThreads]:
    engine = Engine()
    yield ActorThreads(engine, drive=False, keep=_KEEP)
    engine.close()


def test_where_more_actors_wait_than_threads_are_kept_a_thread_goes_on_with_the_next(
    threads: ActorThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ActorThread] = []
    monkeypatch.setattr(ActorThread, "start", lambda thread: made.append(thread))  # the test runs on their behalf
    guests = [Guest(threads) for _ in range(2 * _KEEP)]
    for guest in guests[:_KEEP]:
        threads.engage(guest)
        assert threads.take(made[-1]) is guest
    resting = [
        threading.Thread(target=threads.rest, args=(thread, guest))
        for thread, guest in zip(made[1:], guests[1:_KEEP], strict=True)
    ]
    for sleeper in resting:
        sleeper.start()
    wait_until("idle threads", lambda: [thread.asleep for thread in made[1:]], accept=all)
    for guest in guests[_KEEP:]:
        threads.engage(guest)  # the first one sends for an idle thread, which comes when it comes
    resting[0].join(_PATIENCE_S)

    assert not threads.rest(made[0], guests[0]), "it has slept, and another thread was woken for the next actor"
    assert threads.take(made[0]) is guests[_KEEP]
    assert guests[0].thread is None
    assert made[2].runs is guests[2], "the thread that is still idle keeps its actor"

    guests[2].has_work = True
    guests[2].wake()
    resting[1].join(_PATIENCE_S)
