"""Launches zygotes; the agent launches its first one before it imports its own modules."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from monarch_hpc.core.process.spawn import launch
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE, NO_RUN, RUN_COOKIE

__all__ = ["StartingZygote", "ZygoteSettings", "launch_zygote"]


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


@dataclass(frozen=True, slots=True)
class StartingZygote:
    """A launched zygote that has not been sent its settings: its process, and the agent's end of its socket.

    Attributes:
        stderr_fd: memory file that captures stderr of another interpreter; -1 for the agent's own.
    """

    process: subprocess.Popen[bytes]
    sock: socket.socket
    stderr_fd: int


def launch_zygote(settings: ZygoteSettings, python: str = "") -> StartingZygote:
    """Start a zygote; it ends when its socket is closed.

    Args:
        python: the interpreter; empty for the agent's own, which starts to load *settings.entry* at once.

    Raises:
        OSError: the process cannot be started.
    """
    # An interpreter that cannot import this package can report it only on stderr.
    stderr_fd = os.memfd_create("zygote") if python else -1
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    environment = {
        **settings.environment,
        COOKIE: settings.allocation,
        HOST_COOKIE: str(settings.host_rank),
        RUN_COOKIE: NO_RUN,
    }
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
    return StartingZygote(process, ours, stderr_fd)
