"""Errors name the part of a value that cannot be pickled."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps


@dataclass
class Model:
    sizes: list[int] = field(default_factory=list)
    parts: dict[str, object] = field(default_factory=dict)


class Slotted:
    __slots__ = ("lock",)

    def __init__(self, lock: object) -> None:
        self.lock = lock


class Stubborn:
    def __reduce__(self) -> str:
        raise ValueError("not me")


class Loop:
    def __init__(self) -> None:
        self.me: list[object] = [self]
        self.lock = threading.Lock()


def closed_over() -> object:
    lock = threading.Lock()
    return lambda: lock


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (threading.Lock(), "x, a lock, cannot"),
        ([1, (2, threading.Lock())], "x[1][1], a lock"),
        (Model(parts={"a": [], "b": Model(parts={"c": threading.Lock()})}), "x.parts['b'].parts['c'], a lock"),
        (Slotted([threading.Lock()]), "x.lock[0], a lock"),
        ({threading.Lock()}, "a member of x, a lock"),
        (closed_over(), "x, variable lock, a lock"),
        (Model(parts={"a": Stubborn()}), "x.parts['a'], a Stubborn, cannot be sent: ValueError: not me"),
        (Loop(), "x.lock, a lock"),
        (KeyError(1, threading.Lock()), "what x is made of, a lock"),
        ((word for word in "ab"), "'generator' object; send a list of its items, or each through a port"),
    ],
)
def test_the_path_leads_to_the_obstacle(value: object, words: str) -> None:
    with pytest.raises(Exception) as caught:
        dumps(value)
    error = refusal({"good": 1, "x": value}, caught.value)
    assert words in str(error)


def test_a_wide_container_is_named_itself() -> None:
    value = [*range(2000), threading.Lock()]
    assert str(refusal({"x": value}, TypeError("no"))).startswith("x, a list, cannot be sent")


def test_where_memory_is_missing_no_part_is_to_blame() -> None:
    error = refusal({"x": threading.Lock(), "y": 1}, MemoryError("none for a copy"))
    assert type(error) is MemoryError
    assert str(error) == "x, y cannot be sent: MemoryError: none for a copy"
