"""Only an object that nobody holds is used again, and none is kept for long."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest

from monarch_hpc.transport.spares import KEPT_S, Spares

_SIZE = 1 << 16

_MAKE: dict[type[bytes | bytearray | mmap.mmap], Callable[[], bytes | bytearray | mmap.mmap]] = {
    bytes: lambda: bytes(_SIZE),
    bytearray: lambda: bytearray(_SIZE),
    mmap.mmap: lambda: mmap.mmap(-1, _SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
}


class _Time:
    """A clock, and the calls that wait for it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now_s

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.waiting.append((self.now_s + delay_s, callback))

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        due = [callback for at_s, callback in self.waiting if at_s <= self.now_s]
        self.waiting = [entry for entry in self.waiting if entry[0] > self.now_s]
        for callback in due:
            callback()


@pytest.fixture
def clock() -> _Time:
    return _Time()


@pytest.fixture
def spares(clock: _Time) -> Spares:
    spares = Spares(clock)
    spares.release_by(clock.later)
    return spares


@pytest.mark.parametrize("kind", _MAKE)
def test_an_object_that_nobody_holds_is_used_again(spares: Spares, kind: type[bytes | bytearray | mmap.mmap]) -> None:
    made = _MAKE[kind]()
    place = id(made)
    spares.keep(made)
    assert spares.take(kind, _SIZE) is None, "it is held here"
    holder = [made]
    del made
    assert spares.take(kind, _SIZE) is None, "it is held by a list"
    view = memoryview(holder.pop())[1:]
    assert spares.take(kind, _SIZE) is None, "it is held by a view"
    part = view[4:].cast("B")
    del view
    assert spares.take(kind, _SIZE) is None, "it is held by a view of the view"
    array = np.frombuffer(part, np.uint8)[7:].reshape(-1, 1)
    del part
    assert spares.take(kind, _SIZE) is None, "it is held by an array"
    del array
    assert spares.take(kind, _SIZE + 1) is None
    assert all(spares.take(other, _SIZE) is None for other in _MAKE if other is not kind)
    again = spares.take(kind, _SIZE)
    assert id(again) == place
    assert spares.take(kind, _SIZE) is None, "once"


def test_a_bytearray_that_was_resized_is_not_used_for_its_old_length(spares: Spares) -> None:
    made = bytearray(_SIZE)
    spares.keep(made)
    made += b"more"
    del made
    assert spares.take(bytearray, _SIZE) is None


@pytest.mark.parametrize("end", [lambda made: made.close(), lambda made: made.resize(2 * _SIZE)])
def test_a_mapping_that_its_holder_closed_or_resized_is_not_used(
    spares: Spares, end: Callable[[mmap.mmap], None]
) -> None:
    made = mmap.mmap(-1, _SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    spares.keep(made)
    end(made)
    del made
    assert spares.take(mmap.mmap, _SIZE) is None
    spares.keep(bytes(_SIZE))
    assert spares.take(bytes, _SIZE) is not None


def test_all_are_let_go_in_time_and_then_nothing_waits(spares: Spares, clock: _Time) -> None:
    held = bytes(_SIZE)
    spares.keep(held)
    spares.keep(bytes(_SIZE))
    assert spares.num_bytes == 2 * _SIZE
    for _ in range(4):
        clock.pass_s(KEPT_S / 2)
    assert spares.num_bytes == 0 and not clock.waiting
    spares.keep(bytes(_SIZE))
    assert clock.waiting and spares.clear() and not spares.clear()


def test_one_that_is_used_stays(spares: Spares, clock: _Time) -> None:
    spares.keep(bytes(_SIZE))
    for _ in range(5):
        clock.pass_s(0.6 * KEPT_S)
        assert spares.take(bytes, _SIZE) is not None


def test_no_more_than_the_limit_is_kept(spares: Spares) -> None:
    large = bytes(300 << 20)  # never touched
    spares.keep(large)
    spares.keep(large)
    assert spares.num_bytes == len(large)


def test_nothing_is_kept_where_nothing_lets_it_go(clock: _Time) -> None:
    spares = Spares(clock)
    spares.keep(bytes(_SIZE))
    assert spares.num_bytes == 0
