"""Threads that do not need `threading`."""

from __future__ import annotations

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
