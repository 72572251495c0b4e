"""Threads that do not need `threading`."""

from __future__ import annotations

import _thread
import operator
import os
import threading

import pytest

from monarch_hpc.core.process.thread import Thread, in_main_thread
from monarch_hpc.testing import wait_until


def test_it_works_until_it_is_joined() -> None:
    done: list[bool] = []
    go = threading.Event()

    def work() -> None:
        go.wait(60)
        done.append(in_main_thread())

    thread = Thread(work)
    assert thread.alive
    thread.join(0.001)
    assert not done
    go.set()
    thread.join()
    assert done == [False] and not thread.alive
    assert in_main_thread()


def test_an_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    thread = Thread(lambda: 1 / 0)
    thread.join(60)
    assert not thread.alive
    wait_until("the report", lambda: told)


def test_one_without_memory_for_its_first_frame_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_nothing(_work: object, args: tuple[object]) -> int:
        return _thread.start_new_thread(operator.truth, args)  # it has no frame

    monkeypatch.setattr("monarch_hpc.core.process.thread.start_new_thread", begin_nothing)
    monkeypatch.setattr("monarch_hpc.core.process.thread._may_lack_memory", lambda: True)
    with pytest.raises(RuntimeError, match="no memory for a new thread"):
        Thread(lambda: None)


def test_where_memory_may_lack_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_hpc.core.process.thread._may_lack_memory", lambda: True)
    done: list[int] = []
    thread = Thread(lambda: done.append(1))
    thread.join()
    assert done == [1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_does_not_wait_for_it() -> None:
    go = threading.Event()
    thread = Thread(lambda: go.wait(60))
    pid = os.fork()
    if not pid:
        thread.join()
        os._exit(thread.alive)
    assert os.waitpid(pid, 0)[1] == 0
    go.set()
    thread.join()
