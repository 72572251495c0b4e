"""Starts zygotes: the agent forks its first one from itself, and launches the others in fresh interpreters."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Collection, Mapping

from monarch_hpc.agent.procs.zygote import serve
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE, MESH_COOKIE, NO_MESH, NO_RUN, RUN_COOKIE

__all__ = ["StartingZygote", "ZygoteSettings", "fork_zygote", "launch_zygote"]


@dataclass(frozen=True, slots=True)
class ZygoteSettings:
    """Settings common to all zygotes of an agent.

    Args:
        entry: ``module:function`` that procs run, called with a `ProcStart`.
        environment: the agent's environment.
    """

    allocation: str
    host_rank: int
    entry: str
    environment: Mapping[str, str]

    @property
    def marks(self) -> dict[str, str]:
        """The variables by which `sweep` finds a zygote and the procs that are forked from it."""
        host = str(self.host_rank)
        return {COOKIE: self.allocation, HOST_COOKIE: host, RUN_COOKIE: NO_RUN, MESH_COOKIE: NO_MESH}


@dataclass(frozen=True, slots=True)
class StartingZygote:
    """A zygote that has not been sent its settings: its process id, and the agent's end of its socket.

    Attributes:
        stderr_fd: memory file that captures stderr of another interpreter; -1 for the agent's own.
    """

    pid: int
    sock: socket.socket
    stderr_fd: int


def fork_zygote(settings: ZygoteSettings) -> StartingZygote | None:
    """Fork a zygote from this process, which has a single thread and no secrets; it ends when its socket is closed.

    The modules that agents and procs have in common are loaded once, and one interpreter is started instead of two.

    Returns:
        The zygote; None if this process was started with an environment too small for the marks, or that is hidden.
    """
    own = read_stat("self")
    begin, end = own.environ_range if own is not None else (0, 0)
    shown = _fitting({**settings.environment, **settings.marks}, settings.marks, end - begin)
    if not shown:
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid:
        theirs.close()
        ours.setblocking(False)
        return StartingZygote(pid, ours, -1)
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        ours.detach()
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd != theirs.fileno():
                with contextlib.suppress(OSError):  # the listing's own
                    os.close(fd)
        # The kernel shows the memory of the agent's exec. The C library's variables move from there first.
        environment = {**settings.environment, **settings.marks}
        os.environ.clear()
        os.environ.update(environment)
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, shown, len(shown))
        code = serve(theirs, settings.entry)
    except BaseException:  # noqa: BLE001 the outermost frame of a process
        traceback.print_exc()
    finally:
        os._exit(code)


def _fitting(environment: Mapping[str, str], first: Collection[str], num_bytes: int) -> bytes:
    """Render *environment* for the kernel: the variables in *first*, then others, short ones before long ones.

    Returns:
        At most *num_bytes*; nothing if those in *first* do not fit.
    """
    entries = {name: os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items()}
    shown = b"".join(entries.pop(name) for name in first)
    if len(shown) > num_bytes:
        return b""
    for entry in sorted(entries.values(), key=len):
        if len(shown) + len(entry) > num_bytes:
            break
        shown += entry
    return shown


def launch_zygote(settings: ZygoteSettings, python: str = "") -> StartingZygote:
    """Start a zygote in a fresh interpreter; it ends when its socket is closed.

    Args:
        python: the interpreter; empty for the agent's own, which starts to load *settings.entry* at once.

    Raises:
        OSError: the process cannot be started.
    """
    # An interpreter that cannot import this package can report it only on stderr.
    stderr_fd = os.memfd_create("zygote") if python else -1
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    environment = {**settings.environment, **settings.marks}
    # -P: a user's file in the working directory must not shadow a module.
    argv = [python or sys.executable, "-P", "-m", "monarch_hpc.agent.procs.zygote", str(theirs.fileno())]
    with theirs:
        try:
            process = launch(
                argv if python else [*argv, settings.entry],
                environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr_fd if python else None,
                pass_fds=[theirs.fileno()],
                new_session=True,
            )
        except OSError as error:
            ours.close()
            if stderr_fd >= 0:
                os.close(stderr_fd)
            raise OSError(error.errno, f"{python or sys.executable}: {error.strerror}") from error
    ours.setblocking(False)
    process.returncode = 0  # the agent's reaper waits for it, not this object
    return StartingZygote(process.pid, ours, stderr_fd)
