from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from monarch_hpc.core.arguments import (
    check_flag,
    check_number,
    check_path,
    check_seconds,
    check_text,
    check_texts,
    check_time_limit,
    check_variables,
    shown,
)


class _Unshowable:
    """A value whose `__repr__` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


class _Fatal:
    """A value whose `__repr__` raises what `except Exception` does not catch."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class _Text(str):
    """A subclass, which must not be sent to other processes."""


def test_what_is_good_comes_back_plain() -> None:
    assert check_number("n", np.int64(3)) == 3 and type(check_number("n", np.int64(3))) is int
    assert type(check_text("t", _Text("a"))) is str
    assert check_texts("t", (each for each in ("a", "b")), "") == ("a", "b")
    assert (check_time_limit("s", None), check_time_limit("s", 0)) == (None, 0)
    assert (check_seconds("s", 2), check_seconds("s", 0, zero=True), check_seconds("s", np.float32(0.5))) == (2, 0, 0.5)
    assert check_path("p", Path("/a/b")) == "/a/b"
    assert check_flag("f", False) is False
    assert check_variables("env", {"A": "1", "B": None, "C": Path("/x"), "D": ""}) == {
        "A": "1",
        "B": None,
        "C": "/x",
        "D": "",
    }


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: check_number("n", True), "n is True, a bool: give a whole number"),
        (lambda: check_number("n", 1.0), "n is 1.0, a float: give a whole number"),
        (lambda: check_number("n", "4"), "n is '4', a str: give a whole number"),
        (lambda: check_number("n", 0, least=1), "n is 0: give at least 1"),
        (lambda: check_number("n", 70000, most=65535), "n is 70000: give at most 65535"),
        (lambda: check_text("t", None), "t is None: give a string"),
        (lambda: check_text("t", "", filled=True), "t is empty: give at least one character"),
        (lambda: check_texts("t", "math", "['math']"), "t is 'math', a str: give a list of strings, ['math']"),
        (lambda: check_texts("t", b"math", "['math']"), "t is b'math', a bytes: give a list of strings"),
        (lambda: check_texts("t", {"a": 1}, "['a']"), "a dict: give a list of strings"),
        (lambda: check_texts("t", ["a", 3], ""), "t[1] is 3, an int: give a string"),
        (lambda: check_texts("t", 3, ""), "t is 3, an int: give a list of strings"),
        (lambda: check_seconds("s", "3"), "s is '3', a str: give a number of seconds"),
        (lambda: check_seconds("s", True), "s is True, a bool: give a number of seconds"),
        (lambda: check_seconds("s", 0), "s is 0 s: give more than 0, and at most 1e+09"),
        (lambda: check_seconds("s", -1, zero=True), "s is -1 s: give 0 or more"),
        (lambda: check_seconds("s", float("nan")), "s is nan s: give more than 0"),
        (lambda: check_seconds("s", float("inf")), "s is inf s: give more than 0, and at most 1e+09"),
        (lambda: check_seconds("s", 10**400), "give more than 0, and at most 1e+09"),
        (lambda: check_flag("f", 1), "f is 1, an int: give True or False"),
        (lambda: check_path("p", 3), "p is 3, an int: give a string or a path"),
        (lambda: check_path("p", ""), "p is '', a str: give a path"),
        (lambda: check_path("p", "a\0b"), "it holds a NUL"),
        (lambda: check_variables("env", 3), "env is 3, an int: give a mapping, {'NAME': 'value'}"),
        (lambda: check_variables("env", ["A=1"]), "env is ['A=1'], a list: give a mapping"),
        (lambda: check_variables("env", {"A": 1}), "env['A'] is 1, an int: give a string, '1', or None to unset it"),
        (lambda: check_variables("env", {"A": True}), "env['A'] is True, a bool: give a string, 'True', or None"),
        (lambda: check_variables("env", {"A": b"x"}), "env['A'] is b'x', a bytes: give a string or None"),
        (lambda: check_variables("env", {1: "x"}), "a key of env is 1, an int: give a string"),
        (lambda: check_variables("env", {"": "x"}), "a key of env is empty"),
        (lambda: check_variables("env", {"A=B": "x"}), "env['A=B']: a name of a variable holds neither '=' nor NUL"),
        (lambda: check_variables("env", {"A": "x\0"}), "env['A'] is 'x\\x00': a value holds no NUL"),
        (lambda: check_variables("env", {"A": "\ud800"}), "a value holds no NUL, and can be encoded"),
        (lambda: check_variables("env", {"A": _Unshowable()}), "a _Unshowable: give a string or None"),
        (lambda: check_variables("env", {"A": _Fatal()}), "a _Fatal: give a string or None"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_what_is_allowed(check: Callable[[], object], words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        check()
    assert words in str(caught.value)


def test_large_values_are_shown_short() -> None:
    for value in ("x" * 10**6, [[["x" * 100] * 100] * 100] * 100, {"x": "y" * 10**6}, 10**5000):
        assert len(shown(value)) < 2000
