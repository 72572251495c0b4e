"""The threads of a process at its end."""

from __future__ import annotations

import hashlib
import threading

from monarch_hpc.core.process.native_threads import wait_until_asleep
from monarch_hpc.core.process.thread import Thread


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
