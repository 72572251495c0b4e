"""An interactive shell on a host, without a login there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.ports.port import Channel, Port, PortReceiver
from monarch_hpc.core.arguments import check_instance, check_path
from monarch_hpc.core.errors import PortClosed
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.job.execute import command_environment
from monarch_hpc.job.state import check_env
from monarch_hpc.mesh.host import HostMesh

__all__ = ["shell"]

_READ_BYTES = 16 << 10
_CAPACITY = 64
"""Chunks of output in flight; a command that prints without end is slowed to the terminal's pace, as anywhere."""
_HANG_UP_S = 2.0
"""Time between SIGHUP, which ends a shell, and SIGKILL; time in which the last output is read after a shell's end."""
_END_OF_INPUT = b"\x04"  # Ctrl-D
_LAST_COMMAND_S = 2.0
"""Time that a running command may take to end after the end of input; then the terminal is hung up. Ctrl-D ends what
reads, and a command that was piped in ends by itself; without a limit, one that does neither would be waited for."""
_LOOK_S = 0.2
"""Time between two looks whether a shell has ended whose terminal another process keeps open."""
_USUAL_SIZE = 24, 80
"""Lines and columns of a terminal that does not report its size."""


class _Shell(Actor):
    """A shell and its pseudoterminal."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._master = -1
        self._last_s: float | None = None
        """When the output of jobs that outlive the shell is no longer shown, by the monotonic clock."""

    @endpoint
    def start(
        self,
        output: Port[bytes | int],
        env: dict[str, str],
        workdir: str | None,
        client_cwd: str,
        terminal: str,
        size: tuple[int, int],
    ) -> Port[bytes | tuple[int, int]]:
        """Start the shell; its output goes to *output*, and finally its exit code.

        Args:
            output: port for chunks of output, then the exit code.
            env: variables to set.
            workdir: directory to run in; None for *client_cwd* if it exists on this host, else ``/``.
            client_cwd: working directory of the program.
            terminal: value of ``TERM``.
            size: lines and columns of the terminal.

        Returns:
            A port for input, empty at its end, and for new sizes of the terminal.
        """
        self._master, slave = os.openpty()
        _set_size(self._master, size)
        environment = {**command_environment(context().spawn_rank, env), "TERM": terminal}
        where = workdir or (client_cwd if os.path.isdir(client_cwd) else "/")
        program = environment.get("SHELL") or "/bin/sh"
        try:
            # setsid --ctty makes the pseudoterminal the shell's controlling terminal, so that job control works.
            words = ["setsid", "--ctty", "/bin/sh", "-c", 'cd "$0" && exec "$1" -i', where, program]
            self._process = launch(words, environment, stdin=slave, stdout=slave, stderr=slave)
        finally:
            os.close(slave)
        typed, receiver = Channel.open()
        threading.Thread(target=self._print, args=(output, self._process), daemon=True).start()
        threading.Thread(target=self._type, args=(receiver,), daemon=True).start()
        return typed

    def _print(self, output: Port[bytes | int], process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(PortClosed):
            with contextlib.suppress(OSError):  # EIO: no process has the terminal open any more
                while data := self._read(process):
                    output.send(data)
            code = process.wait()
            output.send(code if code >= 0 else 128 - code)

    def _read(self, process: subprocess.Popen[bytes]) -> bytes:
        """Wait for output and return it; empty at its end, and once the shell has ended, whose jobs may go on."""
        while process.poll() is None:
            if select.select([self._master], [], [], _LOOK_S)[0]:
                return os.read(self._master, _READ_BYTES)
        self._last_s = self._last_s or time.monotonic() + _HANG_UP_S
        is_more = time.monotonic() < self._last_s and select.select([self._master], [], [], 0.0)[0]
        return os.read(self._master, _READ_BYTES) if is_more else b""

    def _type(self, receiver: PortReceiver[bytes | tuple[int, int]]) -> None:
        with receiver, contextlib.suppress(OSError, RuntimeError):  # the shell, or the proc, has ended
            for message in receiver:
                if isinstance(message, tuple):
                    _set_size(self._master, message)
                    continue
                _write(self._master, message or _END_OF_INPUT)
                if not message:
                    self._end(_LAST_COMMAND_S)

    def _end(self, patience_s: float) -> None:
        """Hang up the terminal if the shell has not ended after *patience_s*; then kill the shell if it stays."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return
        # As the kernel does when a terminal is gone: the running command and the shell, which passes it to its jobs.
        for group in {_foreground(self._master) or process.pid, process.pid}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGHUP)
        try:
            process.wait(_HANG_UP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __cleanup__(self, error: BaseException | None) -> None:
        self._end(0.0)


def shell(host_mesh_singleton: HostMesh, *, env: Mapping[str, str] | None = None, workdir: str | None = None) -> int:
    """Run an interactive shell on a host, attached to this program's terminal; blocks until the shell ends.

    Needs no server on the host: an actor carries the terminal's input and output.

    Args:
        host_mesh_singleton: a mesh of one host.
        env: variables to set for the shell.
        workdir: directory to start in; None for this program's working directory, or ``/`` on a host without it.

    Returns:
        The shell's exit code, 128 + number for a signal.

    Raises:
        TypeError: an argument of another type.
        ValueError: the mesh has more than one host.
    """
    check_instance("host_mesh_singleton", host_mesh_singleton, HostMesh, "a mesh of one host, such as this_host()")
    variables = check_env(env)
    workdir = None if workdir is None else check_path("workdir", workdir)
    if len(host_mesh_singleton) != 1:
        raise ValueError(f"a shell runs on one host, the mesh has {len(host_mesh_singleton)}: slice it first")
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    output, receiver = Channel.open(capacity=_CAPACITY)
    procs = host_mesh_singleton.spawn_procs(name="shell")
    try:
        actor = procs.spawn("shell", _Shell)
        typed = actor.start.call_one(
            output, variables, workdir, os.getcwd(), os.environ.get("TERM", "xterm-256color"), _size(stdin)
        ).get()
        with receiver, _raw(stdin), _resizing(typed, stdin), _forwarding(stdin, typed):
            return _show(receiver, stdout)
    finally:
        procs.stop()


def _show(receiver: PortReceiver[Any], stdout: int) -> int:
    for message in receiver:
        if isinstance(message, int):
            return message
        _write(stdout, message)
    raise AssertionError("a receiver that is never closed does not end")


@contextlib.contextmanager
def _forwarding(stdin: int, typed: Port[bytes | tuple[int, int]]) -> Iterator[None]:
    """Send what is typed to the shell; read no key after the end of the context."""
    over, end = os.pipe()

    def forward() -> None:
        # The shell may end, or its host be lost, at any time.
        with contextlib.suppress(OSError, RuntimeError, PortClosed):
            while over not in (ready := select.select([stdin, over], [], [])[0]):
                assert stdin in ready
                data = os.read(stdin, _READ_BYTES)
                typed.send(data)
                if not data:
                    return

    thread = threading.Thread(target=forward, name="monarch-shell", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(end, b".")
        thread.join()
        os.close(over)
        os.close(end)


@contextlib.contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Put the terminal into raw mode: every key goes to the shell, including Ctrl-C."""
    if not os.isatty(terminal):
        yield
        return
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal, termios.TCSADRAIN)  # keeps the input typed so far, which is for the shell
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing(typed: Port[bytes | tuple[int, int]], terminal: int) -> Iterator[None]:
    """Send the terminal's size to the shell whenever it changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def send_size(_number: int, _frame: FrameType | None) -> None:
        # On another thread: the signal may have interrupted a send.
        threading.Thread(target=typed.send, args=(_size(terminal),), daemon=True).start()

    before = signal.signal(signal.SIGWINCH, send_size)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _size(terminal: int) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(terminal)
    except OSError:
        return _USUAL_SIZE
    return (size.lines, size.columns) if size.lines and size.columns else _USUAL_SIZE


def _set_size(terminal: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _foreground(terminal: int) -> int | None:
    """The process group that the terminal's keys go to; None if there is none."""
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return None


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
