"""Messages that kill one life of a proc after the other, and what acquits them."""

from __future__ import annotations

import pytest

from monarch_hpc.supervision.poison import PoisonWatch

PLACE = (9, 2)
BAD, GOOD = b"bad", b"good"


def deaths(
    watch: PoisonWatch, *messages: bytes | None, every_s: float = 1.0, place: tuple[int, int] = PLACE
) -> list[bool]:
    return [watch.on_death(every_s * number, place, message, 60.0) for number, message in enumerate(messages)]


def test_the_third_life_is_the_last_that_a_message_kills() -> None:
    watch = PoisonWatch(3)
    assert deaths(watch, BAD, BAD) == [False, False] and not watch.is_aside(9, BAD)
    assert watch.on_death(2.0, PLACE, BAD, 60.0)
    assert watch.is_aside(9, BAD) and not watch.is_aside(9, GOOD) and not watch.is_aside(8, BAD)
    watch.forget(9)
    assert not watch.is_aside(9, BAD)
    assert deaths(watch, BAD, BAD, BAD) == [False, False, True]


@pytest.mark.parametrize("between", [GOOD, None])
def test_a_death_of_another_cause_in_between_acquits_it(between: bytes | None) -> None:
    watch = PoisonWatch(3)
    assert not any(deaths(watch, BAD, BAD, between, BAD, BAD))


def test_procs_are_counted_apart_and_deaths_that_are_long_ago_not_at_all() -> None:
    watch = PoisonWatch(3)
    assert not any(deaths(watch, BAD, place=(9, rank))[0] for rank in range(9))
    assert not any(deaths(PoisonWatch(3), *[BAD] * 9, every_s=30.0))
    assert deaths(PoisonWatch(1), BAD) == [True]
    assert not any(deaths(PoisonWatch(0), *[BAD] * 9))


def test_what_is_healed_begins_anew() -> None:
    watch = PoisonWatch(2)
    assert deaths(watch, BAD) == [False]
    watch.forget(9)
    assert deaths(watch, BAD, BAD) == [False, True]
