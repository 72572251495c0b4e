"""The door to new processes: zygotes, agents on this machine, and the user's program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

from monarch_hpc.core.dumps import usual_core_dumps

__all__ = ["launch"]


def launch(
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    pass_fds: Sequence[int] = (),
    before_exec: Callable[[], None] | None = None,
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process; the caller waits for it.

    Args:
        environment: all of it; None for this process's own.
        stdin, stdout, stderr: descriptors, None for this process's own, or `subprocess.PIPE`.
        before_exec: runs in the child; only for a process with one thread.
        new_session: keep the terminal's signals away from it.

    Raises:
        OSError: it cannot be started.
    """
    with usual_core_dumps():
        return subprocess.Popen(
            argv,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            preexec_fn=before_exec,
            start_new_session=new_session,
        )
