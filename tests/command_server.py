"""Runs our commands as forks of one process: most of what a short command costs are its interpreter and its imports.

This file is also that process. Each fork has a session, a folder and an environment of its own, and goes on as
`python -m monarch_hpc.cli` does. On the login host of a lab the process is root's, since tests look at the users'
processes, and its forks become alice. What tests start and leave running is started as users start it: by an
interpreter of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import pwd
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.testing.slurmlab import SlurmLab
from monarch_hpc.testing.slurmlab.processes import find_children

__all__ = ["CommandServer", "open_here", "open_on_login"]

_MODULE = "monarch_hpc.cli"
_MOST_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_BEGUN = b"+"
"""Said by a fork that leads its process group."""
# Constant of prctl(2): a process that has given up root's rights is closed to its own user's other processes.
_PR_SET_DUMPABLE = 4


@dataclass
class CommandServer:
    """The process that starts commands, one after the other.

    Attributes:
        pid: of the process.
        connection: to it.
        fresh: environment of the commands, but for what each adds.
        folder: of the commands that are given none.
    """

    pid: int
    connection: socket.socket
    fresh: Mapping[str, str]
    folder: Path

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], timeout_s: float, *, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of our commands to its end.

        Raises:
            TimeoutError: the command timed out; it was killed with its process group.
        """
        place = str(folder or self.folder)
        order = {"arguments": [*arguments], "environment": {**self.fresh, **env, "PWD": place}, "folder": place}
        outputs: dict[int, bytearray] = {}
        with contextlib.ExitStack() as opened:
            end, theirs = socket.socketpair()
            opened.enter_context(end)
            given = [theirs.detach()]
            for _ in ("stdout", "stderr"):
                reads, writes = os.pipe()
                opened.callback(os.close, reads)
                outputs[reads] = bytearray()
                given.append(writes)
            socket.send_fds(self.connection, [json.dumps(order).encode()], given)
            for descriptor in given:
                os.close(descriptor)
            try:
                assert end.recv(1) == _BEGUN, "the server of commands has ended"
                status = self._collect(end, outputs, time.monotonic() + timeout_s)
            except BaseException as error:
                self._kill()
                out, err = map(_text, outputs.values())
                error.add_note(f"{' '.join(arguments)}\nstdout: {out}\nstderr: {err}")
                raise
        out, err = map(_text, outputs.values())
        return subprocess.CompletedProcess([_MODULE, *arguments], status, out, err)

    def _collect(self, end: socket.socket, outputs: dict[int, bytearray], deadline_s: float) -> int:
        """Read outputs to their ends, and return the exit status, which comes on *end*."""
        status = b""
        with selectors.DefaultSelector() as selector:
            for one in (end.fileno(), *outputs):
                selector.register(one, selectors.EVENT_READ)
            while selector.get_map():
                if (left_s := deadline_s - time.monotonic()) <= 0:
                    raise TimeoutError("a command did not end in time")
                for key, _ in selector.select(left_s):
                    data = os.read(key.fd, _CHUNK_BYTES)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.fd in outputs:
                        outputs[key.fd] += data
                    else:
                        status += data
        return int(status)

    def _kill(self) -> None:
        for child in find_children(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)


def _text(output: bytearray) -> str:
    return output.decode(errors="backslashreplace")


@contextlib.contextmanager
def open_on_login(lab: SlurmLab) -> Iterator[CommandServer]:
    """Start a server on the login host, for alice's commands; it ends with the context or the lab."""
    listed = lab.run(["env", "-0"], check=True).stdout.split("\0")
    fresh = dict(line.split("=", 1) for line in listed if line)
    command = [sys.executable, __file__, "alice"]
    with _connected() as (connection, theirs):
        process = lab.popen(command, user="root", stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=None)
        theirs.close()
        with process:
            yield CommandServer(process.inner_pid, connection, fresh, lab.home())
            connection.close()


@contextlib.contextmanager
def open_here(folder: Path) -> Iterator[CommandServer]:
    """Start a server on this machine; its commands have only what each adds as their environment."""
    with _connected() as (connection, theirs):
        process = subprocess.Popen([sys.executable, __file__], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        theirs.close()
        with process:
            yield CommandServer(process.pid, connection, {}, folder)
            connection.close()


@contextlib.contextmanager
def _connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


# ---- in the server ----


def _load() -> None:
    for found in pkgutil.walk_packages(importlib.import_module(_MODULE).__path__, f"{_MODULE}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    gc.collect()
    gc.freeze()


def _serve(name: str | None = None) -> list[str] | None:
    """Run commands of a user until the connection ends; in a fork, return the arguments of its command."""
    with socket.socket(fileno=os.dup(0)) as connection:
        os.set_inheritable(connection.fileno(), False)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        user = pwd.getpwnam(name) if name else None
        libc = ctypes.CDLL(None)
        _load()
        while True:
            order, given, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
            if not order:
                return None
            pid = os.fork()
            if not pid:
                break
            _answer(given, pid)
    os.setsid()
    os.write(given[0], _BEGUN)
    if user is not None:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    told = json.loads(order)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    for number, descriptor in enumerate(given[1:], 1):
        os.dup2(descriptor, number)
    for descriptor in given:
        os.close(descriptor)
    # The interpreter has looked at what these were when it was started, and opens them like this in the user's locale.
    sys.stdout = open(1, "w", errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    arguments: list[str] = told["arguments"]
    return arguments


def _answer(given: list[int], pid: int) -> None:
    for descriptor in given[1:]:
        os.close(descriptor)
    with socket.socket(fileno=given[0]) as end:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):  # the test did not wait for it
            end.sendall(str(status).encode())


if __name__ == "__main__" and (_arguments := _serve(*sys.argv[1:])) is not None:
    sys.argv[1:] = _arguments
    sys.path[0] = os.getcwd()
    runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)
