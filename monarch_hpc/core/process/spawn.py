"""The only place that starts processes: zygotes, agents on this machine, and the user's program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

from monarch_hpc.core.process.dumps import usual_core_dumps

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
        environment: the complete environment; None to inherit this process's.
        stdin, stdout, stderr: descriptors, None to inherit this process's, or `subprocess.PIPE`.
        before_exec: runs in the child; safe only if this process has a single thread.
        new_session: detach the process from the terminal and its signals.

    Raises:
        OSError: the process cannot be started.
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
