"""Runs Slurm's commands; no other module does.

A command never outlives this process, not even if this process is killed with SIGKILL: only requests that were recorded
beforehand can be in flight.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from monarch_hpc.core.errors import SlurmBusy, SlurmCommandError, SlurmMissing, SlurmParseError
from monarch_hpc.core.process.dumps import allow_core_dumps
from monarch_hpc.slurm.argv import (
    COMMANDS,
    partitions_argv,
    queue_argv,
    release_argv,
    reservations_argv,
    scrubbed,
    show_job_argv,
    submit_argv,
    version_argv,
)
from monarch_hpc.slurm.messages import advice_for, is_busy, is_gone
from monarch_hpc.slurm.parse import (
    JobDetail,
    QueueRow,
    parse_job_id,
    parse_partitions,
    parse_queue,
    parse_show_job,
    parse_show_reservations,
)

__all__ = ["SlurmClient"]

_PR_SET_PDEATHSIG = 1
# The list of names only improves an error message, and is not worth a longer wait.
_HINT_TIMEOUT_S = 5.0


class SlurmClient:
    """Slurm's commands on this machine.

    Args:
        environ: environment of the caller; variables that would change the commands are left out.
        timeout_s: longest wait for one command, in seconds.
    """

    def __init__(self, environ: Mapping[str, str], timeout_s: float) -> None:
        self._given = dict(environ)
        self._environ = scrubbed(environ)
        self._timeout_s = timeout_s

    def require(self, command: str) -> None:
        """Raise `SlurmMissing` unless *command* is on PATH."""
        if self._find(command) is None:
            raise SlurmMissing(command)

    def has(self, command: str) -> bool:
        """Tell whether *command* is on PATH."""
        return self._find(command) is not None

    def missing(self) -> list[str]:
        """Return the required commands that are not on PATH."""
        return [command for command in COMMANDS if self._find(command) is None]

    def version(self) -> str:
        """Return Slurm's version as it prints it: ``slurm 22.05.8``, or a distribution's variant of that.

        Raises:
            SlurmMissing: no Slurm command is on PATH.
            SlurmCommandError: Slurm is installed but not configured.
        """
        missing = self.missing()
        found = next((command for command in COMMANDS if command not in missing), COMMANDS[0])
        return self._run(version_argv(found)).strip()

    def submit(self, script: Path, flags: Mapping[str, str]) -> int:
        """Submit *script* and return the job's number.

        Args:
            script: the batch script, which contains all flags.
            flags: the same flags, for the advice in the error if Slurm refuses them.

        Raises:
            SlurmBusy: slurmctld did not answer; the job may or may not exist.
            SlurmCommandError: Slurm refused; no job exists.
        """
        try:
            return parse_job_id(self._run(submit_argv(script)))
        except SlurmBusy:
            raise
        except SlurmCommandError as error:
            known = self._known_names(error.stderr)
            advice = advice_for(error.stderr, flags, known)
            raise SlurmCommandError(error.argv, error.status, error.stderr, advice) from error

    def list_queue(self, names: Iterable[str]) -> str:
        """Return squeue's output for this user's pending, running and completing jobs with one of *names*."""
        return self._run(queue_argv(names))

    def queue(self, names: Iterable[str]) -> tuple[QueueRow, ...]:
        """Return the jobs of `list_queue`, parsed."""
        return parse_queue(self.list_queue(names))

    def find_job(self, job_id: int, name: str | None = None) -> JobDetail | None:
        """Return a job, even one that ended a few minutes ago; None if Slurm does not know it.

        Args:
            job_id: Slurm's number.
            name: expected name of the job; a slurmctld that lost its newest state reuses job ids.
        """
        try:
            detail = parse_show_job(self._run(show_job_argv(job_id)))
            return detail if name in (None, detail.name) else None
        except SlurmBusy:
            raise
        except SlurmCommandError as error:
            if is_gone(error.stderr):
                return None
            raise

    def cancel(self, job_id: int) -> None:
        """Cancel a job; not an error if Slurm does not know it or it has ended."""
        try:
            self._run(release_argv(job_id))
        except SlurmBusy:
            raise
        except SlurmCommandError as error:
            if not is_gone(error.stderr):
                raise

    def start_script(self, script: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a batch script as a child of this process, within the job that this process runs in.

        The script ends when its standard input is closed, and so with this process, however it ends. PR_SET_PDEATHSIG
        would not do: it fires when the thread that started the script ends.

        Args:
            script: runs with the full environment, since it needs the job's variables.
            log: the file to which its output is appended.
        """
        bash = shutil.which("bash", path=self._given.get("PATH", os.defpath)) or "/bin/bash"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(log, flags, 0o600), "wb") as output:
            return subprocess.Popen(
                [bash, str(script), "--lifeline"],
                env=self._given,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _known_names(self, stderr: str) -> tuple[str, ...]:
        """List valid names in place of the refused one; empty if they cannot be listed."""
        try:
            if "partition" in stderr and "account" not in stderr:
                return parse_partitions(self._run(partitions_argv(), _HINT_TIMEOUT_S))
            if "reservation" in stderr:
                reservations = parse_show_reservations(self._run(reservations_argv(), _HINT_TIMEOUT_S))
                return tuple(f"{found.name} from {found.start} to {found.end}" for found in reservations)
        except (SlurmCommandError, SlurmMissing, SlurmParseError):
            pass
        return ()

    def _find(self, command: str) -> str | None:
        return shutil.which(command, path=self._environ.get("PATH", os.defpath))

    def _run(self, argv: Sequence[str], timeout_s: float | None = None) -> str:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        executable = self._find(argv[0])
        if executable is None:
            raise SlurmMissing(argv[0])
        try:
            done = subprocess.run(
                argv,
                executable=executable,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                # This process handles Ctrl-C: an sbatch killed by it would not print the job's id.
                start_new_session=True,
                umask=0o077,
                preexec_fn=_die_with_parent(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmBusy(argv, 124, f"no answer in {timeout_s:.0f} s") from error
        if done.returncode == 0:
            return done.stdout
        words = done.stderr or done.stdout
        # A command killed by a signal may already have sent its request: the outcome is unknown.
        busy = is_busy(words) or done.returncode < 0
        raise (SlurmBusy if busy else SlurmCommandError)(argv, done.returncode, words)


def _die_with_parent() -> Callable[[], None]:
    """Return the function that a child runs before exec, so that it dies with this process, even by SIGKILL."""
    # Loaded before the fork: the child must not take the loader's lock.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arrange() -> None:
        # A job inherits the resource limits of the process that submits it.
        allow_core_dumps()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
