"""Answers that are kept until they are read."""

from __future__ import annotations

from monarch_hpc.actor.kept.answers import KeptAnswers, KeptCall
from monarch_hpc.wire.frames import Frame, Kind

ONE, OTHER = 11, 22


def answer(value: bytes, buffers: list[bytearray] | None = None) -> Frame:
    return Frame(Kind.RESULT, 5, 0, value, buffers or [])


def begun(answers: KeptAnswers, *slots: int, caller: int = ONE) -> None:
    for slot in slots:
        answers.begin(KeptCall(caller, slot, 7, b"head"))


def slots(answers: KeptAnswers) -> list[tuple[int, bool]]:
    return [(call.slot, call.answer is not None) for call in answers.of_others(OTHER)]


def test_an_answer_stays_until_it_is_read() -> None:
    answers = KeptAnswers(1 << 20)
    begun(answers, 1, 2)
    answers.answer(ONE, 2, answer(b"two"))
    assert slots(answers) == [(1, False), (2, True)]
    answers.take(ONE, 2)
    assert (slots(answers), answers.num_dropped) == ([(1, False)], 0)
    assert answers.of_others(ONE) == []


def test_it_is_a_copy_with_the_number_of_the_call() -> None:
    answers, value, got = KeptAnswers(1 << 20), bytearray(b"before"), list[Frame]()
    begun(answers, 1)
    answers.answer(ONE, 1, answer(b"", [value]))
    value[:] = b"behind"
    assert answers.read(ONE, 1, got.append)
    (kept,) = got
    assert (kept.dest, bytes(kept.buffers[0])) == (1, b"before")


def test_what_nobody_has_called_for_is_not_kept() -> None:
    answers = KeptAnswers(1 << 20)
    answers.answer(ONE, 1, answer(b"the end of an actor"))
    assert answers.of_others(OTHER) == []


def test_the_oldest_answers_go_first_and_are_counted_unless_they_were_read() -> None:
    answers = KeptAnswers(8_000)
    begun(answers, 1, 2, 3, 4)
    for slot in (2, 1, 3):
        answers.answer(ONE, slot, answer(bytes(4000)))
    assert (slots(answers), answers.num_dropped) == ([(4, False), (3, True)], 2)
    answers.take(ONE, 2)  # its caller had it
    assert answers.num_dropped == 1
    assert not answers.read(ONE, 2, lambda _answer: None)


def test_an_answer_that_is_larger_than_the_limit_is_dropped_alone() -> None:
    answers = KeptAnswers(10_000)
    begun(answers, 1)
    answers.answer(ONE, 1, answer(bytes(20_000)))
    assert (slots(answers), answers.num_dropped) == ([], 1)


def test_whoever_asks_before_there_is_an_answer_gets_it_then_and_it_stays() -> None:
    answers, got = KeptAnswers(1 << 20), list[Frame]()
    begun(answers, 1)
    assert answers.read(ONE, 1, got.append) and not got
    answers.answer(ONE, 1, answer(b"late"))
    assert [bytes(frame.body) for frame in got] == [b"late"]
    assert slots(answers) == [(1, True)]


def test_a_second_answer_in_place_of_one_that_could_not_be_sent() -> None:
    answers = KeptAnswers(1 << 20)
    begun(answers, 1)
    answers.answer(ONE, 1, answer(bytes(9000)))
    answers.answer(ONE, 1, Frame(Kind.FAILURE, 1, 0, b"too large"))
    (call,) = answers.of_others(OTHER)
    assert call.answer is not None and call.answer.kind is Kind.FAILURE
    assert answers.num_dropped == 0


def test_an_answer_in_a_hand_stays_until_the_hand_is_free() -> None:
    answers = KeptAnswers(1 << 20)
    begun(answers, 1)
    answers.answer(ONE, 1, answer(b"one"))
    answers.hand(ONE, 1)
    assert [call.in_hand for call in answers.of_others(OTHER)] == [True]
    answers.take(ONE, 1)
    answers.hand(ONE, 1)
    assert (answers.of_others(OTHER), answers.num_dropped) == ([], 0)
