"""A read that blocks an event loop is warned of at its line, once, and not in a cell of a notebook."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import types
import warnings
from collections.abc import Callable

import pytest

from monarch_hpc.actor.running_loop import _awake, keep_awake, warn_of_blocking


def caught(run: Callable[[], object]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        run()
    return seen


def run_cell(source: str, **names: object) -> list[warnings.WarningMessage]:
    """Run *source* as Jupyter runs a cell: on a running loop, and as a coroutine if it awaits."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(source, "<a cell>", "exec", flags=flags)
    scope = {"__name__": "__main__", "asyncio": asyncio, "read": warn_of_blocking, **names}

    async def kernel() -> None:
        made = types.FunctionType(code, scope)()
        if inspect.iscoroutine(made):
            await made

    return caught(lambda: asyncio.run(kernel()))


def test_the_line_of_the_user_is_named_once() -> None:
    async def main() -> None:
        for _ in range(3):
            warn_of_blocking()

    first = inspect.getsourcelines(main)[1]
    (seen,) = caught(lambda: asyncio.run(main()))
    assert (seen.filename, seen.lineno, seen.category) == (__file__, first + 2, RuntimeWarning)
    assert "write 'await future' instead" in str(seen.message)


def test_functions_that_a_coroutine_calls_and_callbacks_are_warned_of() -> None:
    def function() -> None:
        warn_of_blocking()

    async def calling() -> None:
        function()

    async def scheduling() -> None:
        asyncio.get_running_loop().call_soon(lambda: warn_of_blocking())
        await asyncio.sleep(0)

    assert [len(caught(lambda main=main: asyncio.run(main()))) for main in (calling, scheduling)] == [1, 1]  # type: ignore[misc]


def test_a_thread_without_a_loop_is_not() -> None:
    async def main() -> None:
        await asyncio.to_thread(warn_of_blocking)

    assert caught(lambda: asyncio.run(main())) == caught(warn_of_blocking) == []


def test_a_cell_is_not_but_a_coroutine_that_it_awaits_is() -> None:
    assert run_cell("read()") == []
    assert run_cell("def f():\n    read()\nf()\nfor _ in range(2): f()") == []
    assert run_cell("await asyncio.sleep(0)\nread()") == []
    (seen,) = run_cell("async def f():\n    read()\nawait f()")
    assert (seen.filename, seen.lineno) == ("<a cell>", 2)


def test_the_loop_of_a_notebook_wakes_while_any_coroutine_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def timers(num: int) -> list[int]:
        loop = asyncio.get_running_loop()
        seen = []
        ends = []
        for _ in range(num):
            ends.append(keep_awake(loop))
            seen.append(len(_awake))
        for end in ends:
            end()
            seen.append(len(_awake))
        return seen

    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # other tests load it
    assert asyncio.run(timers(2)) == [0, 0, 0, 0]
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert asyncio.run(timers(2)) == [1, 1, 1, 0]
