"""Forks wait for what must not be copied half done."""

from __future__ import annotations

import os
import threading

from monarch_hpc.core.process.fork import hold_forks

_PATIENCE_S = 60.0


def test_a_fork_of_another_thread_waits() -> None:
    begun, ended = threading.Event(), threading.Event()

    def fork() -> None:
        begun.set()
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        ended.set()

    thread = threading.Thread(target=fork)
    with hold_forks():
        thread.start()
        assert begun.wait(_PATIENCE_S)
        assert not ended.wait(0.1)
    assert ended.wait(_PATIENCE_S)
    thread.join()


def test_a_child_may_hold_forks_and_fork() -> None:
    child = os.fork()
    if not child:
        with hold_forks():
            pass
        grandchild = os.fork()
        if not grandchild:
            os._exit(7)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
