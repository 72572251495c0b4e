"""A zygote to which nobody has spoken: an agent starts its first one before it loads all that it is itself made of."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from monarch_hpc.core.spawn import launch
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE, NO_RUN, RUN_COOKIE

__all__ = ["StartingZygote", "ZygoteSettings", "launch_zygote"]


@dataclass(frozen=True, slots=True)
class ZygoteSettings:
    """What all zygotes of an agent have in common.

    Args:
        entry: ``module:function`` that procs run, called with a `ProcStart`.
        environment: the agent's.
    """

    allocation: str
    host_rank: int
    entry: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StartingZygote:
    """The process, and our end of its socket.

    Attributes:
        words: descriptor of memory for what another interpreter writes; -1 for our own.
    """

    process: subprocess.Popen[bytes]
    sock: socket.socket
    stderr_fd: int


def launch_zygote(settings: ZygoteSettings, python: str = "") -> StartingZygote:
    """Start a zygote; it ends with its socket.

    Args:
        python: the interpreter; empty for our own, which begins to load what procs run.

    Raises:
        OSError: it cannot be started.
    """
    # What another interpreter cannot do it says there before it can speak to us.
    stderr_fd = os.memfd_create("zygote") if python else -1
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    environment = {
        **settings.environment,
        COOKIE: settings.allocation,
        HOST_COOKIE: str(settings.host_rank),
        RUN_COOKIE: NO_RUN,
    }
    # -P: a file of the user's in the working directory must not pass for a module of ours.
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
