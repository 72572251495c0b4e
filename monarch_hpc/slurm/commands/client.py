"""Runs Slurm's commands; no other module does.

A command never outlives this process, not even if this process is killed with SIGKILL: only requests that were recorded
beforehand can be in flight.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from monarch_hpc.config import FlagValue
from monarch_hpc.core.errors import SlurmBusy, SlurmCommandError, SlurmMissing, SlurmParseError
from monarch_hpc.slurm.commands.argv import (
    COMMANDS,
    accounted_argv,
    change_job_argv,
    configuration_argv,
    node_states_argv,
    partition_limits_argv,
    partitions_argv,
    queue_argv,
    relay_argv,
    release_argv,
    requeue_argv,
    reservations_argv,
    scrubbed,
    show_job_argv,
    show_nodes_argv,
    signal_batch_argv,
    submit_argv,
    submit_next_argv,
    test_only_argv,
    version_argv,
    waiting_argv,
    wide_step_argv,
    write_script_argv,
)
from monarch_hpc.slurm.commands.cluster import (
    NodeState,
    Partition,
    Reservation,
    parse_free_nodes,
    parse_kill_wait,
    parse_partitions,
    parse_show_nodes,
    parse_show_partitions,
    parse_show_reservations,
)
from monarch_hpc.slurm.commands.jobs import (
    JobDetail,
    PlannedStart,
    QueueRow,
    WaitingJob,
    parse_accounted,
    parse_job_id,
    parse_planned_start,
    parse_queue,
    parse_show_job,
    parse_waiting,
)
from monarch_hpc.slurm.commands.lifetime import live_as_parent
from monarch_hpc.slurm.commands.messages import advice_for, advice_for_change, is_busy, is_gone

__all__ = ["SlurmClient"]

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
            raise self._advised(error, flags) from error

    def submit_text(self, script: Path, folder: Path, variables: Mapping[str, str]) -> str:
        """Submit *script* from *folder*, with *variables* in its environment; return what sbatch prints."""
        return self._run(submit_argv(script), folder=folder, variables=variables)

    def why_no_jobs(self) -> str:
        """Return why no jobs can be submitted on this machine by the site's rules; empty if they can."""
        return ""

    def plan(self, components: Sequence[Mapping[str, FlagValue]], *, advised: bool) -> PlannedStart:
        """Ask when a job with these flags would start; nothing is submitted.

        Args:
            components: the job's flags; of a heterogeneous one, those of each component.
            advised: whether to explain a refusal, for which Slurm may be asked once more.

        Raises:
            SlurmBusy: slurmctld did not answer.
            SlurmCommandError: Slurm would refuse the job.
        """
        try:
            # sbatch writes the answer to stderr.
            return parse_planned_start(self._run(test_only_argv(components), with_stderr=True))
        except SlurmBusy:
            raise
        except SlurmCommandError as error:
            if not advised:
                raise
            words = {name: "" if value is True else str(value) for name, value in components[0].items() if value}
            raise self._advised(error, words) from error

    def partition_limits(self) -> tuple[Partition, ...]:
        """Return all partitions with their limits."""
        return parse_show_partitions(self._run(partition_limits_argv()))

    def node_states(self, hosts: Sequence[str]) -> tuple[NodeState, ...]:
        """Return the states of nodes."""
        return parse_show_nodes(self._run(show_nodes_argv(hosts)))

    def run_on(self, job_id: int, host: str, command: Sequence[str], timeout_s: float, component: int = -1) -> str:
        """Run a command on one host of a job, as a step that takes nothing from it, and return what it prints.

        Args:
            component: that has the host, in a heterogeneous job; -1 in any other.

        Raises:
            SlurmBusy: no answer in *timeout_s* seconds.
            SlurmCommandError: the step could not be started, or the command failed.
        """
        return self._run(relay_argv(job_id, host, command, component), timeout_s)

    def run_on_all(self, job_id: int, sizes: Sequence[int], command: Sequence[str], timeout_s: float) -> str:
        """Run a command on each host of a job, whose components have *sizes* hosts; otherwise as `run_on`."""
        return self._run(wide_step_argv(job_id, sizes, command), timeout_s)

    def waiting(self) -> tuple[WaitingJob, ...]:
        """Return this user's jobs that wait.

        Raises:
            SlurmBusy: slurmctld did not answer.
            SlurmCommandError: Slurm refused, with advice.
        """
        try:
            return parse_waiting(self._run(waiting_argv()))
        except SlurmBusy:
            raise
        except SlurmCommandError as error:
            raise self._advised(error, {}) from error

    def list_queue(self, names: Iterable[str]) -> str:
        """Return squeue's output for this user's pending, running and completing jobs with one of *names*."""
        return self._run(queue_argv(names))

    def queue(self, names: Iterable[str]) -> tuple[QueueRow, ...]:
        """Return the jobs of `list_queue`, parsed."""
        return parse_queue(self.list_queue(names))

    def find_job(self, job_id: int | str, name: str | None = None) -> JobDetail | None:
        """Return a job, even one that ended a few minutes ago; None if Slurm does not know it.

        Args:
            job_id: Slurm's number, or ``ARRAY_TASK``.
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

    def find_ended(self, job_id: int, name: str) -> JobDetail | None:
        """Return what the accounting database says of a job that Slurm no longer knows; None if it says nothing.

        Many sites have no database, or do not let users ask it; its answer is one more source, never required.
        """
        detail = parse_accounted(self.probe(accounted_argv(job_id), _HINT_TIMEOUT_S), name)
        return detail if detail is not None and not detail.state.phase.alive else None

    def read_kill_wait(self) -> float:
        """Return the seconds between SIGTERM and SIGKILL at the end of a job."""
        return parse_kill_wait(self._run(configuration_argv()))

    def cancel(self, job_id: int | str) -> None:
        """Cancel a job; not an error if Slurm does not know it or it has ended."""
        try:
            self._run(release_argv(job_id))
        except SlurmBusy:
            raise
        except SlurmCommandError as error:
            if not is_gone(error.stderr):
                raise

    def change(self, job_id: int, change: str, folder: Path) -> None:
        """Change a job: ``TimeLimit=+30``, ``NodeList=n1,n2``.

        Args:
            folder: working directory of scontrol, which leaves scripts there when a job shrinks.

        Raises:
            SlurmBusy: slurmctld did not answer; the job may or may not have been changed.
            SlurmCommandError: Slurm refused, with advice.
        """
        argv = change_job_argv(job_id, change)
        try:
            self._run(argv, folder=folder)
        except SlurmBusy:
            raise
        except SlurmCommandError as error:
            advice = advice_for_change(error.stderr, job_id, change)
            raise SlurmCommandError(error.argv, error.status, error.stderr, advice) from error

    def requeue(self, job_id: str) -> None:
        """End a running batch job, and put it back into the queue.

        Raises:
            SlurmCommandError: Slurm refused, as it does for jobs with ``--no-requeue``.
        """
        self._run(requeue_argv(job_id))

    def signal_batch(self, job_id: int, signal: int) -> None:
        """Send the batch script of a running job a signal.

        Raises:
            SlurmCommandError: Slurm refused, as the job does not run.
        """
        self._run(signal_batch_argv(job_id, signal))

    def write_script(self, job_id: str, path: Path) -> None:
        """Write the batch script of a job to *path*."""
        self._run(write_script_argv(job_id, path))

    def submit_next(self, script: Path, job_id: str, variables: Mapping[str, str]) -> int:
        """Submit *script* as a job that starts when *job_id* has ended, with *variables* in its environment.

        The new job inherits the environment of this process without the variables of its job.
        """
        return parse_job_id(self._run(submit_next_argv(script, job_id), variables=variables))

    def reservations(self) -> tuple[Reservation, ...]:
        """Return all reservations."""
        return parse_show_reservations(self._run(reservations_argv()))

    def count_free(self, nodes: str) -> int | None:
        """Count the free nodes of a compact list; None if that cannot be learned."""
        try:
            return parse_free_nodes(self._run(node_states_argv(nodes), _HINT_TIMEOUT_S))
        except (SlurmCommandError, SlurmMissing):
            return None

    def probe(self, argv: Sequence[str], timeout_s: float) -> str:
        """Return the output of a query that need not succeed; empty if it is refused or unanswered."""
        try:
            return self._run(argv, timeout_s)
        except (SlurmCommandError, SlurmMissing):
            return ""

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

    def start_apart(self, script: Path) -> None:
        """Start a shell script that goes on without this process and its terminal, and writes its own files."""
        # The shell in between ends at once: the script is not this process's child, and leaves no zombie.
        argv = ["bash", "-c", 'trap "" HUP; bash "$0" < /dev/null > /dev/null 2>&1 &', str(script)]
        subprocess.run(argv, env=self._environ, stdin=subprocess.DEVNULL, start_new_session=True, check=True)

    def refusal(self, argv: Sequence[str], status: int, words: str, flags: Mapping[str, str]) -> SlurmCommandError:
        """Return the error of a command that was run elsewhere: busy, or refused with advice as for `submit`."""
        busy = is_busy(words)
        return SlurmBusy(argv, status, words) if busy else self._advised(SlurmCommandError(argv, status, words), flags)

    def _advised(self, error: SlurmCommandError, flags: Mapping[str, str]) -> SlurmCommandError:
        advice = advice_for(error.stderr, flags, self._known_names(error.stderr))
        return SlurmCommandError(error.argv, error.status, error.stderr, advice)

    def _known_names(self, stderr: str) -> tuple[str, ...]:
        """List valid names in place of the refused one; empty if they cannot be listed."""
        try:
            if "partition" in stderr and "account" not in stderr:
                return parse_partitions(self._run(partitions_argv(), _HINT_TIMEOUT_S))
        except (SlurmCommandError, SlurmMissing, SlurmParseError):
            pass
        return ()

    def _find(self, command: str) -> str | None:
        return shutil.which(command, path=self._environ.get("PATH", os.defpath))

    def _run(
        self,
        argv: Sequence[str],
        timeout_s: float | None = None,
        *,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        with_stderr: bool = False,
    ) -> str:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        executable = self._find(argv[0])
        if executable is None:
            raise SlurmMissing(argv[0])
        try:
            done = subprocess.run(
                argv,
                executable=executable,
                cwd=folder,
                env={**self._environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                # This process handles Ctrl-C: an sbatch killed by it would not print the job's id.
                start_new_session=True,
                umask=0o077,
                preexec_fn=live_as_parent(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmBusy(argv, 124, f"no answer in {timeout_s:.0f} s") from error
        if done.returncode == 0:
            return done.stdout + (done.stderr if with_stderr else "")
        words = done.stderr or done.stdout
        # A command killed by a signal may already have sent its request: the outcome is unknown.
        busy = is_busy(words) or done.returncode < 0
        raise (SlurmBusy if busy else SlurmCommandError)(argv, done.returncode, words)
