"""Descriptions of objects are plain text of bounded length, whatever the objects' own code does."""

from __future__ import annotations

import traceback

from monarch_hpc.core.text.description import summary_of, text_of, trace_of, traceback_of


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 as an actor does
        return raised


class Message(Exception):
    def __str__(self) -> str:
        return f"code {self.args[0]:d}"


def test_of_a_well_behaved_exception_it_is_what_python_prints() -> None:
    error = ValueError("no")
    error.add_note("a note")
    error.__cause__ = KeyError("k")
    raised = _raised(error)
    assert trace_of(raised) == "".join(traceback.format_exception(raised))
    assert traceback_of(raised) is raised.__traceback__
    assert summary_of(raised) == "ValueError: no"


def test_a_message_that_cannot_be_made_is_named_and_the_frames_stay() -> None:
    raised = _raised(Message("no number"))
    assert summary_of(raised) == "Message: <str() of Message raised ValueError>"
    assert "raise error" in trace_of(raised)


def test_what_is_long_keeps_its_beginning_and_its_end() -> None:
    text = text_of("a" * 100_000 + "b" * 100_000)
    assert text.startswith("aaa") and text.endswith("bbb")
    assert f"{200_000 - (16 << 10)} characters left out" in text


def test_a_crowd_of_exceptions_is_not_formatted() -> None:
    trace = trace_of(_raised(ExceptionGroup("g", [ValueError(n) for n in range(10_000)])))
    assert "related exceptions are not shown" in trace and len(trace) < 2000
