"""Commands on the hosts of a mesh."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import pending
from monarch_hpc.core.arguments import check_instance, check_path, check_texts
from monarch_hpc.core.files import open_output
from monarch_hpc.core.shape import Point
from monarch_hpc.core.spawn import launch
from monarch_hpc.job.state import check_env
from monarch_hpc.mesh.host import HostMesh

__all__ = ["command_environment", "exec_command"]

_SUBDIR = "$SUBDIR"


class _Command(Actor):
    """Runs a command as a child of its proc, whose output its own is."""

    @endpoint
    def run(
        self, argv: list[str], env: dict[str, str], workdir: str | None, client_cwd: str, output_dir: str | None
    ) -> int:
        """Run it to its end; return its exit code, 128 + number for a signal."""
        rank = context().spawn_rank
        where = workdir or (client_cwd if Path(client_cwd).is_dir() else None)
        words = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', where, *argv] if where else argv
        with contextlib.ExitStack() as opened:
            out: int | None = None
            err: int | None = None
            if output_dir is not None:
                place = "_".join(f"{label}_{at}" for label, at in rank.items())
                folder = Path(output_dir.replace(_SUBDIR, place))
                out, err = (_open_until(opened, folder / name) for name in _FILES)
            try:
                process = launch(
                    words, command_environment(rank, env), stdin=subprocess.DEVNULL, stdout=out, stderr=err
                )
            except FileNotFoundError as error:
                raise FileNotFoundError(f"command {argv[0]!r} is not found on {context().proc.host}") from error
        code = process.wait()
        return code if code >= 0 else 128 - code


_FILES = ("stdout.txt", "stderr.txt")


def _open_until(end: contextlib.ExitStack, path: Path) -> int:
    descriptor = open_output(path)
    end.callback(os.close, descriptor)
    return descriptor


def command_environment(rank: Point, env: Mapping[str, str]) -> dict[str, str]:
    """What a command gets: its proc's environment, its place in the mesh, and *env*."""
    ranks = {f"MONARCH_RANK_{label}": str(at) for label, at in rank.items()}
    sizes = {f"MONARCH_SIZE_{label}": str(size) for label, size in rank.extent.to_dict().items()}
    return {**os.environ, **ranks, **sizes, **env}


def exec_command(
    host_mesh: HostMesh,
    cmd: Sequence[str],
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | None = None,
    rank: int | None = None,
    point: Mapping[str, int] | None = None,
    per_host: Mapping[str, int] | None = None,
) -> Future[int]:
    """Run a command on the hosts of a mesh; it has begun when this returns.

    Args:
        host_mesh: where.
        cmd: command and arguments. A Python file, or ``-m`` and a module, is run by the interpreter of the procs.
        env: more variables; the command's place in the mesh is in ``MONARCH_RANK_<dim>`` and ``MONARCH_SIZE_<dim>``.
        workdir: where it starts; None for this program's directory on hosts that have it.
        output_dir: folder on each host for its ``stdout.txt`` and ``stderr.txt`` (0600), in which ``$SUBDIR`` stands
            for its place. None shows its lines here, as those of procs. A folder that other users may write is refused,
            as are files of theirs and links.
        rank: only on the host of that rank.
        point: only on the hosts at these coordinates.
        per_host: dimensions of several on each host.

    Returns:
        A future of the largest exit code; its commands go on when nobody waits for it.

    Raises:
        TypeError: an argument of another type; *cmd* as one string, too.
        ValueError: there is no command, or both *rank* and *point* were given.
    """
    check_instance("host_mesh", host_mesh, HostMesh, "a mesh of hosts, as hosts() returns it")
    cmd = check_texts("cmd", cmd, "one for each word, as in ['ls', '-l']")
    env = check_env(env)
    workdir = None if workdir is None else check_path("workdir", workdir)
    output_dir = None if output_dir is None else check_path("output_dir", output_dir)
    if not cmd:
        raise ValueError("there is no command to run")
    if rank is not None and point is not None:
        raise ValueError("give rank or point, not both")
    if point is not None:
        host_mesh = host_mesh.slice(**point)
    elif rank is not None:
        host_mesh = host_mesh.flatten("rank").slice(rank=rank)
    argv = [sys.executable, *cmd] if cmd[0].endswith(".py") or cmd[0] == "-m" else list(cmd)
    procs = host_mesh.spawn_procs(per_host=per_host, name="exec")
    answers = procs.spawn("command", _Command).run.call(argv, env, workdir, os.getcwd(), output_dir)
    future: Future[int] = pending(f"the command {argv[0]}")

    def finish() -> None:
        try:
            try:
                code = max(answers.get().values())
            finally:
                procs.stop()
        except BaseException as error:  # noqa: BLE001 raised where the future is read
            future.set_exception(error)
        else:
            future.set_result(code)

    # Not a daemon: the end of the program waits for the command.
    threading.Thread(target=finish, name="monarch-exec", daemon=False).start()
    return future
