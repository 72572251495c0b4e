"""Faults that a process does to itself, and an actor that suffers them on request."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from monarch_hpc.actor.endpoint import Actor, endpoint

__all__ = ["FAULTS", "Faulty"]

_STRAY_S = 600


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    faulthandler.enable()
    ctypes.string_at(0)


def _exit(code: int = 0) -> None:
    os._exit(code)


def _leave(code: int = 0) -> None:
    sys.exit(code)


def _pause(duration_s: float) -> None:
    """Stop this process and let it go on after *duration_s*; returns at once."""
    script = f"kill -STOP $PPID; sleep {duration_s}; kill -CONT $PPID"
    subprocess.Popen(["sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _lose_gpu() -> None:
    """Die as a program does whose GPU has an error that cannot be corrected."""
    os.write(2, b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    os.abort()


def _hold_gil(duration_s: float) -> None:
    # A function of libc that is called like Python's own keeps the interpreter's lock.
    usleep = ctypes.PyDLL(None).usleep
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        usleep(100_000)


def _take_memory(num_bytes: int) -> None:
    kept.append(bytearray(num_bytes))


def _use_descriptors(num_left: int = 0) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        for _ in range(num_left):
            os.close(int(kept.pop()))  # type: ignore[call-overload]


def _leave_child() -> None:
    """Start a process that is hard to attribute: in its own session, with an empty environment."""
    subprocess.Popen(["setsid", "sleep", str(_STRAY_S)], env={}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


kept: list[object] = []
"""Memory and descriptors that a fault has taken."""

FAULTS: Mapping[str, Callable[..., None]] = {
    "kill": _kill,
    "segfault": _segfault,
    "abort": os.abort,
    "exit": _exit,
    "leave": _leave,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "pause": _pause,
    "lose_gpu": _lose_gpu,
    "hold_gil": _hold_gil,
    "take_memory": _take_memory,
    "use_descriptors": _use_descriptors,
    "leave_child": _leave_child,
}
"""Faults that a process can inflict on itself:

    kill              SIGKILL
    segfault, abort   a crash in C code
    exit(code)        the process exits at once; leave(code): sys.exit, which ends the actor
    stop              SIGSTOP; pause(s): and SIGCONT after s seconds
    lose_gpu          the words of CUDA about an ECC error, and a crash
    hold_gil(s)       C code that keeps the interpreter's lock
    take_memory(n)    n bytes; use_descriptors(n): all but n of 256
    leave_child       a process of a session of its own, without a trace of its origin in its environment
"""


class Faulty(Actor):
    """Suffers the fault that it is asked for."""

    @endpoint
    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    @endpoint
    def suffer(self, fault: str, *args: float) -> str:
        """Do *fault*, one of `FAULTS`, in this process; return its name if the process survives."""
        FAULTS[fault](*args)
        return fault
