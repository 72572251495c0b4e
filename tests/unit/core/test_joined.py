"""Errors of several ranks: one class whatever the number of failures, caught by what all failed ranks raised."""

from __future__ import annotations

import pickle
import traceback
from typing import ClassVar

import pytest

from monarch_hpc.actor.messages.remote_error import as_actor_error
from monarch_hpc.core.errors import (
    ActorDied,
    ActorError,
    ActorFailed,
    CallFailed,
    DeliveryUnknown,
    HostLost,
    MeshDied,
    MeshError,
    ProcDied,
    SpawnError,
    SupervisionError,
)
from monarch_hpc.core.errors.joined import join_failures

WHERE = "actor a[0] on n1, endpoint step"


def arrived(error: Exception) -> ActorError:
    """The exception as a caller gets it."""
    error.add_note(f"raised by {WHERE}; remote traceback:\n...")
    return as_actor_error(error, WHERE)


class Picky(ValueError):
    """Has a constructor that no other code can call, and attributes of several kinds."""

    __slots__ = ("slotted",)
    made: ClassVar[int] = 0

    def __new__(cls, *, number: int) -> Picky:
        assert number
        return super().__new__(cls)

    def __init__(self, *, number: int) -> None:
        super().__init__(f"number {number}")
        self.number = number
        self.slotted = "in a slot"

    def __reduce__(self) -> tuple[object, ...]:
        return _picky, (self.number,)


def _picky(number: int) -> Picky:
    return Picky(number=number)


class Final(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses of this")


@pytest.mark.parametrize("ranks", [(2,), (2, 3), (0, 1, 2, 3)])
def test_the_class_does_not_depend_on_how_many_failed(ranks: tuple[int, ...]) -> None:
    error = join_failures("a.step", {rank: arrived(KeyError(f"k{rank}")) for rank in ranks})
    assert isinstance(error, MeshError) and isinstance(error, KeyError) and isinstance(error, ActorError)
    assert not isinstance(error, SupervisionError)
    assert error.exception is error.failures[ranks[0]]
    assert error.args == (f"k{ranks[0]}",) and sorted(error.failures) == list(ranks)
    printed = "".join(traceback.format_exception(error))
    assert printed.startswith("monarch_hpc.core.errors.call.MeshError: a.step failed on ")
    assert printed.count("remote traceback") == 1


def test_the_text_counts_the_ranks() -> None:
    one = join_failures("a.step", {2: arrived(KeyError("k"))})
    assert str(one) == "a.step failed on one rank; rank 2: KeyError: 'k'"
    two = join_failures("a.step", {2: arrived(KeyError("k")), 0: arrived(KeyError("k"))})
    assert str(two) == "a.step failed on 2 ranks; first rank 0: KeyError: 'k' (also on rank 2)"


def test_it_has_the_attributes_of_the_first() -> None:
    missing = FileNotFoundError(2, "no such file", "shard.bin")
    error = join_failures("a.load", {1: arrived(missing), 4: arrived(FileNotFoundError(2, "no such file", "other"))})
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.filename, error.args) == (2, "shard.bin", (2, "no such file"))
    picky = join_failures("a.load", {1: arrived(Picky(number=7))})
    assert isinstance(picky, Picky) and isinstance(picky, MeshError)
    assert (picky.number, picky.slotted, picky.args) == (7, "in a slot", ("number 7",))
    broken = join_failures("a.load", {0: arrived(UnicodeDecodeError("utf8", b"ab", 1, 2, "bad"))})
    assert isinstance(broken, UnicodeDecodeError) and (broken.start, broken.object) == (1, b"ab")


def test_different_classes_are_caught_by_what_they_share() -> None:
    error = join_failures("a.load", {0: arrived(FileNotFoundError(2, "f")), 1: arrived(PermissionError(13, "p"))})
    assert isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    apart = join_failures("a.load", {0: arrived(KeyError("k")), 1: arrived(ValueError("v"))})
    assert type(apart) is MeshError and isinstance(apart.exception, KeyError)


def test_a_group_of_all_ranks_can_be_split() -> None:
    caught: list[Exception] = []
    try:
        raise join_failures("a.step", {rank: arrived(ExceptionGroup("g", [ValueError(rank)])) for rank in range(2)})
    except* ValueError as values:
        caught += values.exceptions
    assert [error.args for error in caught] == [(0,)]


def test_what_is_wrapped_stays_wrapped() -> None:
    error = join_failures("a.step", {rank: arrived(Final(f"last {rank}")) for rank in (1, 3)})
    assert isinstance(error, MeshError) and isinstance(error, ActorFailed)
    assert isinstance(error.exception, Final) and error.type_name == "Final"


@pytest.mark.parametrize("made", [KeyError("k"), Picky(number=3), OSError(5, "io"), ActorFailed("a", "T", "m", "t")])
def test_it_survives_pickling(made: Exception) -> None:
    error = join_failures("a.step", {2: arrived(made), 5: arrived(made)})
    error.add_note("on its way")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, MeshError) and isinstance(again, type(made).__mro__[0])
    assert (str(again), again.args, again.__notes__) == (str(error), error.args, error.__notes__)
    assert str(again.exception) == str(made)


def test_a_death_counts_more_than_what_other_ranks_raised() -> None:
    failures = {
        0: arrived(ConnectionError("reset")),
        1: HostLost("a[1] on n1", "no heartbeat"),
        2: ProcDied("a[2]", "x"),
    }
    error = join_failures("a.step", failures)
    assert isinstance(error, MeshDied) and isinstance(error, RuntimeError) and isinstance(error, CallFailed)
    assert isinstance(error, ProcDied) and not isinstance(error, (ActorError, HostLost))
    assert (error.where, error.cause) == ("a[1] on n1", "no heartbeat")
    assert str(error).startswith("a.step failed on 3 ranks; first rank 1: HostLost: a[1] on n1 died: no heartbeat; ")
    assert sorted(error.failures) == [0, 1, 2]
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, MeshDied) and isinstance(again, ProcDied) and again.cause == "no heartbeat"


def test_one_death_is_of_its_class() -> None:
    for made in (ActorDied("a", "its constructor raised"), ProcDied("a", "signal 9"), DeliveryUnknown("a", "cut")):
        error = join_failures("a.step", {0: made})
        assert isinstance(error, MeshDied) and isinstance(error, type(made))


def test_what_is_neither_is_raised_as_it_is() -> None:
    failures = {rank: SpawnError("n1", "no such module") for rank in (3, 1)}
    assert join_failures("a.step", failures) is failures[1]
