from __future__ import annotations

import logging
import pickle
import traceback

import pytest

from monarch_hpc.core.errors import ActorDied, ActorFailed, MeshDied, MeshError
from monarch_hpc.core.errors.summary import origin_of, summarize

TRACE = """Traceback (most recent call last):
  File "/lib/cell.py", line 9, in run
    value = step()
  File "job.py", line 12, in step
    raise error
"""


def failed(kind: type[Exception] = ValueError, text: str = "no data", place: str = "local0") -> Exception:
    error = kind(text)
    error.add_note(f"raised by actor a on {place}, endpoint step; remote traceback:\n{TRACE}{kind.__name__}: {text}\n")
    return error


class _Mute(Exception):
    """An exception whose `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_equal_failures_are_counted_and_the_first_shows_its_traceback_once() -> None:
    error = MeshError("a.step", {rank: failed(place=f"local{rank}") for rank in range(4)})
    assert str(error) == "a.step failed on 4 ranks; first rank 0: ValueError: no data (also on ranks 1, 2, 3)"
    printed = "".join(traceback.format_exception(error))
    assert printed.count('File "job.py", line 12, in step') == 1 and "on local0, endpoint step" in printed
    assert "".join(traceback.format_exception(pickle.loads(pickle.dumps(error)))) == printed


def test_different_failures_are_named_and_many_are_counted() -> None:
    failures: dict[int, BaseException] = {3: failed(), 1: failed(KeyError, "x"), 7: failed()}
    assert summarize(failures) == "rank 3: ValueError: no data (also on rank 7); rank 1: KeyError: 'x'"
    assert str(MeshError("a.step", failures)).endswith(
        "first rank 1: KeyError: 'x'; rank 3: ValueError: no data (also on rank 7)"
    )
    many = summarize({rank: failed(text=f"rank {rank}\nand more") for rank in range(1000)})
    assert many.startswith("rank 0: ValueError: rank 0; rank 1: ValueError: rank 1; ")
    assert many.endswith("; and 995 more ranks with 995 other exceptions") and len(many) < 500
    assert summarize(dict.fromkeys(range(100), failed())).endswith(
        "(also on ranks 1, 2, 3, 4, 5, 6, 7, 8, ... 99 in all)"
    )


def test_a_group_and_a_log_record_show_the_traceback_too(caplog: pytest.LogCaptureFixture) -> None:
    error = MeshError("a.step", {0: failed(), 1: failed()})
    assert "line 12, in step" in "".join(traceback.format_exception(ExceptionGroup("both", [error])))
    logging.getLogger("test").error("lost", exc_info=error)
    assert caplog.text.count("line 12, in step") == 1


def test_the_length_is_bounded_whatever_was_raised() -> None:
    huge = {0: failed(text="x" * 10**7), 1: ActorFailed("a", "Odd", "y" * 10**7, "z" * 10**7)}
    assert len("".join(traceback.format_exception(MeshError("a.step", huge)))) < 20_000


def test_one_whose_text_cannot_be_had_is_still_told() -> None:
    mute = _Mute()
    mute.__notes__ = [_Mute(), 3]  # type: ignore[list-item]  # user code may do so
    assert "first rank 0: _Mute: <str() of _Mute raised" in str(MeshError("a.step", {0: mute, 1: _Mute()}))


def test_what_has_no_traceback_shows_its_other_lines() -> None:
    gone = ActorDied("a on local0", "signal 9 (SIGKILL); it wrote last:\n    out of cheese")
    printed = "".join(traceback.format_exception(MeshDied("a.step", {0: gone, 1: gone})))
    assert printed.count("out of cheese") == 1
    assert "first rank 0: ActorDied: a on local0 died: signal 9 (SIGKILL) (also on rank 1)\nit wrote last:\n" in printed


def test_a_failure_knows_where_it_was_raised() -> None:
    assert origin_of(failed()) == "job.py:12 in step"
    assert origin_of(ActorFailed("a", "Odd", "odd", TRACE)) == "job.py:12 in step"
    assert origin_of(ValueError("here")) == ""
