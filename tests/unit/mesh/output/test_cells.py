"""Cells of a notebook end once the output that they caused is printed; programs elsewhere are not touched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from monarch_hpc.actor.future import Future
from monarch_hpc.mesh.output.cells import NotebookCells
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.transport.engine.engine import Engine


class Events:
    """IPython's events: callbacks by name."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[..., object]]] = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, name: str, callback: Callable[..., object]) -> None:
        self.callbacks[name].append(callback)

    def unregister(self, name: str, callback: Callable[..., object]) -> None:
        self.callbacks[name].remove(callback)

    def trigger(self, name: str) -> None:
        for callback in self.callbacks[name]:
            callback(object())


class Notebook:
    """A kernel's shell, and the program's engine and printer, which write down what is asked of them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.events = Events()
        self.shell = SimpleNamespace(kernel=object(), events=self.events)
        self.flushes: list[Future[None]] = []
        self.answers = True
        self.engine = SimpleNamespace(driving=False, closed=False, forked_from=0, clock=lambda: 0.0, wait=self._wait)
        self.printer = SimpleNamespace(context=None, flush=lambda _left_s: self.done.append("printed"))

    def _wait(self, _ready: object, timeout_s: float) -> bool:
        self.done.append(f"waited {timeout_s:g} s")
        return self.answers

    def open(self) -> NotebookCells:
        return NotebookCells(cast(Engine, self.engine), cast(Printer, self.printer), lambda: self.flushes)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", cast(ModuleType, SimpleNamespace(get_ipython=lambda: notebook.shell)))
    return notebook


def test_a_cell_waits_for_the_agents_and_then_for_the_printer(notebook: Notebook) -> None:
    cells = notebook.open()
    notebook.flushes = [cast("Future[None]", object())]
    notebook.events.trigger("post_run_cell")
    assert notebook.done == ["waited 1 s", "printed"]
    notebook.answers = False
    notebook.events.trigger("post_run_cell")
    assert notebook.done == ["waited 1 s", "printed", "waited 1 s"]
    cells.close()
    cells.close()
    assert notebook.events.callbacks == {"pre_run_cell": [], "post_run_cell": []}


def test_a_cell_without_procs_waits_for_nothing(notebook: Notebook) -> None:
    notebook.open()
    notebook.events.trigger("post_run_cell")
    assert notebook.done == []


def test_each_cell_has_a_context(notebook: Notebook) -> None:
    notebook.open()
    first = notebook.printer.context
    notebook.events.trigger("pre_run_cell")
    assert first is not None and notebook.printer.context is not first


@pytest.mark.parametrize("shell", [None, SimpleNamespace(kernel=None), SimpleNamespace()])
def test_a_terminal_is_no_notebook(notebook: Notebook, shell: object) -> None:
    notebook.shell = cast(SimpleNamespace, shell)
    notebook.open().close()
    assert notebook.printer.context is None


def test_a_program_without_ipython_is_no_notebook(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython")
    notebook.open().close()
    assert notebook.printer.context is None
