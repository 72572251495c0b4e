"""Runs commands on the hosts of a mesh."""

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
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.shape import Point
from monarch_hpc.core.storage.files import open_output
from monarch_hpc.job.state import check_env
from monarch_hpc.mesh.host import HostMesh

__all__ = ["command_environment", "exec_command"]

_SUBDIR = "$SUBDIR"


class _Command(Actor):
    """Runs a command as a child of its proc; the command's output becomes the proc's output."""

    @endpoint
    def run(
        self, argv: list[str], env: dict[str, str], workdir: str | None, client_cwd: str, output_dir: str | None
    ) -> int:
        """Run the command to its end; return its exit code, 128 + number for a signal.

        Args:
            argv: the command and its arguments.
            env: variables to set.
            workdir: directory to run in; None for *client_cwd* if it exists on this host.
            client_cwd: working directory of the program.
            output_dir: folder for the command's output; None sends it to the program.
        """
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
    """The environment of a command: that of its proc, its place in the mesh, and *env*."""
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
    """Run a command on the hosts of a mesh; returns once the procs that run it have started.

    Args:
        host_mesh: the hosts.
        cmd: command and arguments. A Python file, or ``-m`` and a module, is run by this program's interpreter.
        env: variables to set, in addition to ``MONARCH_RANK_<dim>`` and ``MONARCH_SIZE_<dim>``, the place of the
            command in the mesh.
        workdir: directory to run in; None for this program's working directory on hosts that have it.
        output_dir: folder on each host for ``stdout.txt`` and ``stderr.txt`` (mode 0600); ``$SUBDIR`` in it is replaced
            by the command's coordinates. None shows the output here, like that of procs. Folders that other users may
            write to, files of other users, and links are refused.
        rank: run only on the host of this rank in *host_mesh*.
        point: run only on the hosts at these coordinates.
        per_host: names and sizes of dimensions, to run several commands on each host; None for one.

    Returns:
        A future of the largest exit code, 128 + number for a signal. The commands run whether or not it is awaited, and
        the program does not exit before they have ended.

    Raises:
        TypeError: an argument of another type; also if *cmd* is a single string.
        ValueError: *cmd* is empty, or both *rank* and *point* were given.
        IndexError, KeyError: *rank* or *point* is not in the mesh.
        SpawnError: a proc did not start.
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
        except BaseException as error:  # noqa: BLE001 raised to the reader of the future
            future.set_exception(error)
        else:
            future.set_result(code)

    # Not a daemon: the program must not exit before the commands have ended.
    threading.Thread(target=finish, name="monarch-exec", daemon=False).start()
    return future
