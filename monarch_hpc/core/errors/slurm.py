"""Errors of Slurm commands, jobs and allocations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_hpc.core.death import EXIT_CODES, DeathKind
from monarch_hpc.core.errors.root import MonarchError

__all__ = [
    "AgentsMissing",
    "AllocationError",
    "JobFailed",
    "SlurmBusy",
    "SlurmCommandError",
    "SlurmError",
    "SlurmMissing",
    "SlurmParseError",
    "TimeTooShort",
]


class SlurmError(MonarchError):
    """Base of the errors of Slurm's commands and jobs."""

    exit_code = 69


class SlurmMissing(SlurmError):
    """A Slurm command is not on this machine's PATH."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command

    def __str__(self) -> str:
        return (
            f"no Slurm here: '{self.command}' is not on PATH; load the site's Slurm module, work on a "
            "login node, or try the program on this machine with 'monarch-hpc run --local 2 SCRIPT'"
        )


class SlurmCommandError(SlurmError):
    """A Slurm command exited non-zero.

    Args:
        argv: the command as run.
        status: its exit status.
        stderr: Slurm's own message.
        advice: what to change, in one line; empty when nothing better than Slurm's message is known.
    """

    exit_code = 71

    def __init__(self, argv: Sequence[str], status: int, stderr: str, advice: str = "") -> None:
        super().__init__(tuple(argv), status, stderr, advice)
        self.argv = tuple(argv)
        self.status = status
        self.stderr = stderr
        self.advice = advice

    def __str__(self) -> str:
        words = self.stderr.strip() or "(no message)"
        advice = f"\n{self.advice}" if self.advice else ""
        return f"{self.argv[0]} refused (exit status {self.status}): {words}{advice}"


class SlurmBusy(SlurmCommandError):
    """slurmctld did not answer in time; whether it carried out the request is unknown."""

    exit_code = 69
    retryable = True

    def __str__(self) -> str:
        return f"slurmctld does not answer '{self.argv[0]}': {self.stderr.strip()}; agents and runs go on without it"


class SlurmParseError(SlurmError):
    """A Slurm command printed something that this version does not understand."""

    exit_code = 70

    def __init__(self, command: str, text: str) -> None:
        super().__init__(command, text)
        self.command = command
        self.text = text

    def __str__(self) -> str:
        return (
            f"cannot read the answer of '{self.command}': {self.text[:200]!r}; "
            "please report it with 'scontrol --version'"
        )


class JobFailed(SlurmError):
    """The Slurm job of an allocation ended while it was needed.

    Args:
        job_id: Slurm's number.
        state: Slurm's state word, e.g. ``TIMEOUT``.
        reason: the reason as text.
        kind: the same as a kind of death, which decides on the exit code.
    """

    exit_code = 72

    def __init__(self, job_id: int, state: str, reason: str, kind: DeathKind = DeathKind.UNKNOWN) -> None:
        super().__init__(job_id, state, reason, kind)
        self.job_id = job_id
        self.state = state
        self.reason = reason
        self.kind = kind
        self.exit_code = EXIT_CODES.get(kind, type(self).exit_code)

    def __str__(self) -> str:
        return f"Slurm job {self.job_id} ended: {self.state}: {self.reason}"


class AllocationError(MonarchError):
    """An allocation cannot be used as requested.

    Args:
        name: the allocation's name.
        problem: what is wrong and what to do.
        kind: the death that is the cause, if there is one; it decides on the exit code.
    """

    exit_code = 72

    def __init__(self, name: str, problem: str, kind: DeathKind = DeathKind.UNKNOWN) -> None:
        super().__init__(name, problem, kind)
        self.name = name
        self.problem = problem
        self.kind = kind
        self.exit_code = EXIT_CODES.get(kind, type(self).exit_code)

    def __str__(self) -> str:
        return f"allocation {self.name!r}: {self.problem}"  # no control characters, if it is a mistyped one


class TimeTooShort(AllocationError):
    """Less time is left than a run needs, so it was not started.

    Args:
        name: the allocation's name.
        needed_s: the time that the run needs, in seconds.
        left_s: the time that is left, in seconds.
    """

    exit_code = 75

    def __init__(self, name: str, needed_s: float, left_s: float) -> None:
        MonarchError.__init__(self, name, needed_s, left_s)
        self.name = name
        self.needed_s = needed_s
        self.left_s = left_s

    def __str__(self) -> str:
        return (
            f"allocation '{self.name}': {self.left_s / 60:.0f} min are left, and the run needs "
            f"{self.needed_s / 60:.0f} min; it was not started. Try 'monarch-hpc extend {self.name} TIME', or take "
            "another allocation"
        )


class AgentsMissing(AllocationError):
    """Agents did not report before the deadline.

    Args:
        name: the allocation's name.
        deadline_s: the time waited since the job started, in seconds.
        last_lines: the last lines written by the agent of each missing host; may be empty.
    """

    def __init__(self, name: str, deadline_s: float, last_lines: Mapping[str, Sequence[str]]) -> None:
        MonarchError.__init__(self, name, deadline_s, {host: tuple(lines) for host, lines in last_lines.items()})
        self.name = name
        self.deadline_s = deadline_s
        self.last_lines = {host: tuple(lines) for host, lines in last_lines.items()}

    def __str__(self) -> str:
        num = len(self.last_lines)
        parts = [
            f"allocation '{self.name}': no agent from {num} host(s) {self.deadline_s:.0f} s after the job started:"
        ]
        for host, lines in sorted(self.last_lines.items()):
            parts.append(f"  {host}: " + ("(wrote nothing)" if not lines else ""))
            parts.extend(f"    {line}" for line in lines)
        parts.append(f"see 'monarch-hpc logs {self.name}'")
        return "\n".join(parts)
