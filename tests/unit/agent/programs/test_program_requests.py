"""Requests for programs that no process could carry out are refused in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.agent.programs.request_checks import problem_of
from monarch_hpc.wire.control.programs import ReadOutput, ResizeTerminal, SignalProgram, StartProgram

ORDER = StartProgram("ab", "x", ["x"], "/", 0o22, {"A": "b"}, [24, 80], True)


def test_what_is_possible_is_accepted() -> None:
    assert problem_of(ORDER) == problem_of(replace(ORDER, terminal=[])) == ""
    assert problem_of(ReadOutput("ab", -1)) == problem_of(SignalProgram("ab", 10, True, -1.0)) == ""


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(ORDER, argv=[]), "needs a command line"),
        (replace(ORDER, argv=[""]), "needs a command line"),
        (replace(ORDER, argv=["a\0b"]), "can be 'a\\x00b'"),
        (replace(ORDER, argv=["\ud800"]), "can be '\\ud800'"),
        (replace(ORDER, cwd="here"), "not an absolute path"),
        (replace(ORDER, umask=-1), "umask -1"),
        (replace(ORDER, umask=0o1000), "umask 1000"),
        (replace(ORDER, environment={"A=": "1"}), "no variable is called 'A='"),
        (replace(ORDER, environment={"A": "\0"}), "can be '\\x00'"),
        (replace(ORDER, terminal=[24]), "no terminal has the size [24]"),
        (ResizeTerminal("ab", -1, 80), "no terminal has the size [-1, 80]"),
        (ResizeTerminal("ab", 1 << 16, 80), "no terminal has the size"),
        (SignalProgram("ab", 0, False, -1.0), "0 is not a signal"),
        (SignalProgram("ab", 1 << 40, False, -1.0), "is not a signal"),
        (SignalProgram("ab", 15, False, 1e300), "is too long"),
        (ReadOutput("ab", -2), "no output has such a place"),
        (ReadOutput("ab", 1 << 63), "no output has such a place"),
        (ReadOutput("../../x", 0), "no output has such a place"),
        (ReadOutput("..", 0), "no output has such a place"),
        (ReadOutput("", 0), "no output has such a place"),
    ],
)
def test_what_is_not_is_refused(
    request_: StartProgram | ReadOutput | SignalProgram | ResizeTerminal, words: str
) -> None:
    assert words in problem_of(request_)
