"""The checker of histories finds each kind of violation in a history that was right before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.testing.history.checker import (
    Began,
    Closed,
    Concluded,
    Event,
    Finished,
    Gone,
    Judged,
    Overlap,
    Sent,
    Stopping,
    Told,
    Untold,
    check,
    decode,
    encode,
)


def good() -> list[Event]:
    """Everything that may happen: *a* lives, *b* is killed, *c* is stopped by *s*, and the sender *t* is killed."""
    return [
        Sent("s", 1, ["a"]),
        Sent("s", 2, ["a", "b"], replies=False),
        Sent("s", 3, ["a", "b"]),
        Sent("s", 4, ["a"], beside=True),
        Sent("s", 5, ["a"], limited=True),
        Sent("s", 6, ["a"]),
        Sent("s", 7, ["a", "b"], chooses=True),
        Sent("s", 8, ["a"], fails=True),
        Sent("t", 1, ["a"]),
        Sent("t", 2, ["a"]),
        Began("a", "s", 1),
        Finished("a", "s", 1),
        Began("a", "s", 2),
        Finished("a", "s", 2),
        Began("a", "t", 1),
        Finished("a", "t", 1),
        Began("b", "s", 2),
        Gone(["b"]),
        Began("a", "s", 3),
        Began("a", "s", 4),  # beside it
        Finished("a", "s", 3),
        Began("a", "s", 7),
        Finished("a", "s", 7),
        Finished("a", "s", 4),
        Began("a", "s", 8),
        Finished("a", "s", 8),
        Concluded("s", 1, {"a": "=s#1"}),
        Concluded("s", 3, {"a": "=s#3", "b": "ActorDied"}),
        Concluded("s", 4, {"*": "=s#4"}),
        Concluded("s", 5, {"*": "CallTimeout"}),
        Concluded("s", 6, cancelled=True),
        Concluded("s", 7, {"*": "=s#7"}),
        Concluded("s", 8, {"a": "ValueError"}),
        Sent("s", 9, ["c"]),
        Sent("s", 10, ["c"], beside=True),
        Sent("s", 11, ["c"], after=True),
        Stopping("s", 12, ["c"], "enough"),
        Sent("s", 13, ["c"]),
        Began("c", "s", 9),
        Told("c", "s", 9),
        Finished("c", "s", 9),
        Began("c", "s", 10),
        Judged("c", "s", 9),
        Told("c", "s", 10),
        Untold("c", "s", 11),
        Finished("c", "s", 10),
        Began("c", "s", 11),
        Finished("c", "s", 11),
        Judged("c", "s", 10),
        Concluded("s", 9, {"c": "=s#9"}),
        Concluded("s", 10, {"c": "ActorDied: it was stopped: enough"}),
        Concluded("s", 11, {"c": "PortClosed"}),
        Concluded("s", 13, {"c": "ActorDied: it was stopped: enough"}),
        Closed("s"),
    ]


def swapped(events: list[Event], one: Event, other: Event) -> list[Event]:
    first, second = events.index(one), events.index(other)
    events[first], events[second] = other, one
    return events


def changed(events: list[Event], old: Event, *new: Event) -> list[Event]:
    place = events.index(old)
    return [*events[:place], *new, *events[place + 1 :]]


def outcome(number: int, **outcomes: str) -> list[Event]:
    """With another outcome of that call."""
    old = next(event for event in good() if isinstance(event, Concluded) and event.number == number)
    return changed(good(), old, replace(old, outcomes=outcomes))


def test_a_good_history_is_good() -> None:
    assert check(good()) == []
    assert check([decode(encode(event)) for event in good()]) == []


@pytest.mark.parametrize(
    ("law", "events", "words"),
    [
        (
            "order",
            changed(
                changed(good(), Began("a", "s", 1)), Finished("a", "s", 2), Finished("a", "s", 2), Began("a", "s", 1)
            ),
            "s#1 was begun by a after s#2",
        ),
        (
            "once",
            changed(good(), Finished("a", "s", 1), Finished("a", "s", 1), Began("a", "s", 1), Finished("a", "s", 1)),
            "s#1 was begun twice by a",
        ),
        (
            "once",
            changed(good(), Began("b", "s", 2), Began("b", "s", 2), Began("b", "s", 7)),
            "s#7 was for one actor, and begun by ['a', 'b']",
        ),
        ("once", changed(good(), Closed("s"), Concluded("s", 1, {"a": "=s#1"}), Closed("s")), "s#1 has two outcomes"),
        (
            "lost message",
            changed(changed(good(), Began("a", "s", 2)), Finished("a", "s", 2)),
            "s#2 was not begun by a, which lives",
        ),
        ("lost message", changed(good(), Gone(["b"])), ""),
        ("lost reply", outcome(1, a="DeliveryUnknown"), "s#1 to a, which lives, ended as DeliveryUnknown"),
        ("lost reply", outcome(3, b="ActorDied"), "s#3 to a, which lives, ended as nothing"),
        (
            "failure",
            changed(outcome(1, a="ActorDied"), Finished("a", "s", 1)),
            "s#1 to a, which lives, ended as ActorDied",
        ),
        ("lost reply", outcome(1, a="CallTimeout"), "s#1 to a, which lives, ended as CallTimeout"),
        (
            "failure",
            changed(outcome(7, **{"*": "ActorDied"}), Gone(["b"])),
            "s#7 to one of ['a', 'b'], which live, ended as ActorDied",
        ),
        ("blocked", changed(good(), Concluded("s", 1, {"a": "=s#1"})), "s#1 to ['a'] has no outcome"),
        ("blocked", changed(good(), Concluded("s", 6, cancelled=True)), "s#6 to ['a'] has no outcome"),
        ("wrong reply", outcome(1, a="=s#3"), "s#1 to a was answered by s#3"),
        ("wrong reply", changed(good(), Finished("a", "s", 1)), "s#1 was answered, and a has not finished it"),
        ("turns", swapped(good(), Finished("a", "s", 1), Began("a", "s", 2)), "s#2 was begun by a while s#1 ran"),
        ("phantom", changed(good(), Began("b", "s", 2), Began("b", "s", 1)), "s#1 was never sent to b, which began it"),
        ("phantom", changed(good(), Sent("t", 1, ["a"])), "t#1 was never sent to a, which began it"),
        (
            "order",
            changed(
                changed(good(), Began("a", "s", 4)), Finished("a", "s", 8), Finished("a", "s", 8), Began("a", "s", 4)
            ),
            "s#4 was begun by a after s#8",
        ),
        ("turns", [*good(), Overlap("a")], "two threads ran code of a at once"),
        ("stops", changed(good(), Began("c", "s", 11), Began("c", "s", 13)), "s#13 was begun by c, which its sender"),
        ("lost message", changed(good(), Began("c", "s", 11)), "s#11 was not begun by c, which lives"),
        (
            "lost reply",
            outcome(9, c="ActorDied: it was stopped: enough"),
            "s#9 to c, which lives, ended as ActorDied: it was stopped: enough",
        ),
        ("failure", outcome(13, c="ActorDied: it was stopped"), "s#13 to c, which lives, ended as ActorDied"),
        ("lost reply", outcome(9, c="PortClosed"), "s#9 to c, which lives, ended as PortClosed"),
        ("hooks", changed(good(), Judged("c", "s", 9)), "s#10 reached the hook of c while s#9 was handled"),
        ("hooks", changed(good(), Told("c", "s", 10), Told("c", "s", 9)), "s#9 reached the hook of c twice"),
        ("hooks", [*good(), Untold("a", "s", 1)], "s#1 made a child fail, and a is not told"),
    ],
)
def test_what_is_wrong_is_found(law: str, events: list[Event], words: str) -> None:
    found = check(events)
    assert law in {violation.law for violation in found}, found
    assert any(words in violation.text for violation in found), found


def test_who_died_is_excused() -> None:
    assert check(changed(good(), Closed("s"), Closed("s"), Closed("t")))  # it sent what nobody began
    assert not check(changed(good(), Sent("t", 2, ["a"])))
