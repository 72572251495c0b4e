"""The threads of a process at its end."""

from __future__ import annotations

import _thread
import hashlib
import subprocess
import sys
import threading

from monarch_hpc.core.process.native_threads import thread_frames, thread_ids, wait_until_asleep
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.testing import wait_until

_PATIENCE_S = 60.0

_ENDED_IN_C = """
import ctypes, os, threading
from monarch_hpc.core.process.native_threads import thread_frames

if os.fork():  # procs are forks, whose main thread has a new id
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
assert threading.get_ident() in thread_frames()
for stack_mib in (64, 128):  # the first one's stack, which is too large to be kept, is unmapped with the second one's
    threading.stack_size(stack_mib << 20)
    thread = threading.Thread(target=lambda: ctypes.CDLL(None).pthread_exit(None), daemon=True)
    thread.start()
    while thread.native_id is None or os.path.exists(f"/proc/self/task/{thread.native_id}"):
        pass
assert not thread_frames()
os._exit(0)  # the interpreter would look at them, too
"""
"""Crashes up to Python 3.12 where the threads are looked at."""


def compute(rounds: int, done: list[bytes]) -> None:
    """Compute outside the interpreter, and then ask for it."""
    done.append(hashlib.pbkdf2_hmac("sha256", b"some", b"salt", rounds))


def test_one_that_computes_is_waited_for() -> None:
    done: list[bytes] = []
    thread = Thread(lambda: compute(20_000, done))
    assert wait_until_asleep(30.0)
    assert done
    thread.join()


def test_one_that_goes_on_is_waited_for_no_longer_than_allowed() -> None:
    done: list[bytes] = []
    thread = Thread(lambda: compute(50_000, done))
    assert not wait_until_asleep(0.0)
    assert not done
    thread.join()


def test_one_that_waits_is_not() -> None:
    go = threading.Event()
    thread = Thread(lambda: go.wait(30.0))
    assert wait_until_asleep(20.0)
    go.set()
    thread.join()


def test_the_frames_of_all_threads_are_found() -> None:
    go = threading.Event()
    other = threading.Thread(target=go.wait, args=(_PATIENCE_S,))
    other.start()
    try:
        # One that `threading` has not started, and of which it keeps an object for ever.
        foreign: list[threading.Thread] = []
        _thread.start_new_thread(lambda: foreign.append(threading.current_thread()), ())
        wait_until("its end", lambda: foreign and foreign[0].native_id not in thread_ids())
        assert {other.ident, threading.get_ident()} <= thread_frames().keys()
    finally:
        go.set()
        other.join()


def test_a_thread_that_ended_in_c_is_not_looked_at() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDED_IN_C], stderr=subprocess.PIPE, timeout=_PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
