"""Dataclasses of documents: what is accepted, and what errors say, does not depend on how many came before."""

from __future__ import annotations

import math

import pytest

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire import document
from monarch_hpc.wire.document import MAX_BITS, build

MANY = 3 * document._MAX_SLOW


@dataclass(frozen=True, slots=True)
class Inner:
    """One in another."""

    name: str
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class Outer:
    """All kinds of fields."""

    name: str
    number: int
    share: float
    flag: bool
    inner: Inner
    inners: list[Inner]
    by_name: dict[str, float]
    anything: object


GOOD: dict[str, object] = {
    "name": "a",
    "number": -3,
    "share": 2,
    "flag": True,
    "inner": {"name": "b", "sizes": [1, 2]},
    "inners": [{"name": "c", "sizes": []}],
    "by_name": {"x": 0.5, "y": 1},
    "anything": [None, {}],
}
MADE = Outer("a", -3, 2.0, True, Inner("b", [1, 2]), [Inner("c", [])], {"x": 0.5, "y": 1.0}, [None, {}])


def test_it_is_the_same_object_each_time() -> None:
    for _ in range(MANY):
        made = build(Outer, {**GOOD}, "it")
        assert made == MADE and isinstance(made, Outer) and type(made.share) is type(made.by_name["y"]) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, "it.name: 1 is not of type <class 'str'>"),
        ({"number": True}, "it.number: True is not"),
        ({"number": 1.0}, "it.number: 1.0 is not"),
        ({"number": 1 << MAX_BITS}, "it.number: a number of 65 bits"),
        ({"share": math.nan}, "it.share: nan is not"),
        ({"share": 10**400}, "it.share: 1000"),
        ({"share": False}, "it.share: False is not"),
        ({"share": "1"}, "it.share: '1' is not"),
        ({"flag": 1}, "it.flag: 1 is not"),
        ({"inner": {"name": "b"}}, "it.inner: fields .'sizes'. are missing"),
        ({"inner": {"name": "b", "sizes": [1, "2"]}}, "it.inner.sizes: '2' is not"),
        ({"inner": None}, "it.inner: None is not"),
        ({"inners": {"name": "c", "sizes": []}}, "it.inners: "),
        ({"by_name": {"x": None}}, "it.by_name.x: None is not"),
        ({"more": 1}, "it: fields .'more'. are missing or unknown"),
    ],
    ids=str,
)
def test_errors_name_the_place(change: dict[str, object], message: str) -> None:
    for _ in range(MANY):
        with pytest.raises(FrameError, match=message):
            build(Outer, {**GOOD, **change}, "it")
    for _ in range(MANY):
        build(Outer, {**GOOD}, "it")
    with pytest.raises(FrameError, match=message):
        build(Outer, {**GOOD, **change}, "it")


def test_numbers_at_the_limit() -> None:
    for number in ((1 << MAX_BITS) - 1, 1 - (1 << MAX_BITS)):
        for _ in range(MANY):
            assert build(Outer, {**GOOD, "number": number}, "it") == Outer(
                "a", number, 2.0, True, Inner("b", [1, 2]), [Inner("c", [])], {"x": 0.5, "y": 1.0}, [None, {}]
            )
