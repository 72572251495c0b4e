"""Every error a user can meet, in one tree.

    MonarchError
    |-- ConfigError            a key, a file or a flag is wrong
    |-- SlurmError
    |   |-- SlurmMissing       no Slurm command on this machine
    |   |-- SlurmCommandError  a Slurm command refused; its own words are kept
    |   |   `-- SlurmBusy      slurmctld did not answer; the request may be repeated
    |   |-- SlurmParseError    Slurm printed what we do not understand
    |   `-- JobFailed          the job of an allocation ended
    |-- AllocationError        an allocation by that name, in that state, cannot be used
    |   `-- AgentsMissing      hosts whose agent did not report in time
    |-- TransportError
    |   |-- ChannelClosed      this side closed
    |   |-- PeerLost           the other side, or the wire, is gone
    |   |-- FrameError         bytes that are no frame
    |   |-- AuthenticationError  the other side could not prove the allocation's key
    |   `-- VersionMismatch    Python, package or protocol differ between the two sides
    |-- ActorError
    |   |-- ActorFailed        an endpoint raised on one rank
    |   |-- ActorDied          the actor, its proc or its host is gone
    |   |-- DeliveryUnknown    sent, not answered, and the peer is gone
    |   |-- MeshError          several ranks failed
    |   `-- SpawnError         a proc could not be started
    |-- LabError               the Slurm lab on this machine cannot do what was asked
    `-- InternalError          our bug

Fields come first and are passed to `super().__init__`, so that every error survives pickling on
its way from another host; `__str__` builds the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = [
    "ActorDied",
    "ActorError",
    "ActorFailed",
    "AgentsMissing",
    "AllocationError",
    "AuthenticationError",
    "ChannelClosed",
    "ConfigError",
    "DeliveryUnknown",
    "FrameError",
    "InternalError",
    "JobFailed",
    "LabError",
    "MeshError",
    "MonarchError",
    "PeerLost",
    "SlurmBusy",
    "SlurmCommandError",
    "SlurmError",
    "SlurmMissing",
    "SlurmParseError",
    "SpawnError",
    "TransportError",
    "VersionMismatch",
]


class MonarchError(Exception):
    """Base of all errors of this package.

    `exit_code` is what the command line exits with; `retryable` tells whether the same request
    may succeed later with nothing changed.
    """

    exit_code = 1
    retryable = False


class ConfigError(MonarchError):
    """A configuration value cannot be used.

    Args:
        key: dotted key, e.g. ``paths.shared``; empty when the file itself is at fault.
        value: what was found, as text.
        source: where it came from: ``file:line``, ``$VARIABLE`` or a flag.
        problem: what is wrong and what would be right.
    """

    exit_code = 65

    def __init__(self, key: str, value: str, source: str, problem: str) -> None:
        super().__init__(key, value, source, problem)
        self.key = key
        self.value = value
        self.source = source
        self.problem = problem

    def __str__(self) -> str:
        what = f"{self.key} = {self.value}: " if self.key else ""
        return f"{self.source}: {what}{self.problem}"


class SlurmError(MonarchError):
    """Base of what goes wrong between us and Slurm."""

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
        stderr: Slurm's own words.
        advice: what to change, in one line; empty when nothing better than Slurm's words is known.
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
    """slurmctld did not answer in time; nothing is known about what was asked."""

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
        reason: the reason in words.
    """

    exit_code = 72

    def __init__(self, job_id: int, state: str, reason: str) -> None:
        super().__init__(job_id, state, reason)
        self.job_id = job_id
        self.state = state
        self.reason = reason

    def __str__(self) -> str:
        return f"Slurm job {self.job_id} ended: {self.state}: {self.reason}"


class AllocationError(MonarchError):
    """An allocation cannot be used as asked.

    Args:
        name: the allocation's name.
        problem: what is wrong and what to do.
    """

    exit_code = 72

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"allocation '{self.name}': {self.problem}"


class AgentsMissing(AllocationError):
    """Agents did not report before the deadline.

    Args:
        name: the allocation's name.
        deadline_s: how long was waited after the job started, in seconds.
        last_words: for each missing host the last lines that its agent wrote, maybe none.
    """

    def __init__(self, name: str, deadline_s: float, last_words: Mapping[str, Sequence[str]]) -> None:
        MonarchError.__init__(self, name, deadline_s, {host: tuple(lines) for host, lines in last_words.items()})
        self.name = name
        self.deadline_s = deadline_s
        self.last_words = {host: tuple(lines) for host, lines in last_words.items()}

    def __str__(self) -> str:
        num = len(self.last_words)
        parts = [
            f"allocation '{self.name}': no agent from {num} host(s) {self.deadline_s:.0f} s after the job started:"
        ]
        for host, lines in sorted(self.last_words.items()):
            parts.append(f"  {host}: " + ("(wrote nothing)" if not lines else ""))
            parts.extend(f"    {line}" for line in lines)
        parts.append(f"see 'monarch-hpc logs {self.name}'; give it up with 'monarch-hpc release {self.name}'")
        return "\n".join(parts)


class TransportError(MonarchError):
    """Base of what goes wrong on a channel."""

    exit_code = 74


class ChannelClosed(TransportError):
    """This side closed the channel.

    Args:
        peer: the other end, as ``role host``.
        reason: why this side closed.
    """

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason

    def __str__(self) -> str:
        return f"the channel to {self.peer} was closed here: {self.reason}"


class PeerLost(TransportError):
    """The other end of a channel, or the wire to it, is gone.

    Raised by every pending and later call on the channel. If this side closed it, the call raises
    `ChannelClosed` instead. `__cause__` holds what the transport itself reported.
    """

    retryable = True

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason

    def __str__(self) -> str:
        return f"lost {self.peer}: {self.reason}"


class FrameError(TransportError):
    """Bytes that are not a frame of this protocol.

    Args:
        problem: which field is wrong and its value.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"not a valid frame: {self.problem}"


class AuthenticationError(TransportError):
    """The other side could not prove that it holds the allocation's key."""

    exit_code = 77

    def __init__(self, peer: str, problem: str) -> None:
        super().__init__(peer, problem)
        self.peer = peer
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.peer} is not part of this allocation: {self.problem}"


class VersionMismatch(TransportError):
    """Two sides run versions that cannot understand each other.

    Args:
        what: ``Python``, ``monarch_hpc`` or ``protocol``.
        here: version on this side, with the path of the interpreter.
        there: version on the other side, with its host.
    """

    exit_code = 76

    def __init__(self, what: str, here: str, there: str) -> None:
        super().__init__(what, here, there)
        self.what = what
        self.here = here
        self.there = there

    def __str__(self) -> str:
        return (
            f"{self.what} differs: {self.here} here, {self.there} there; use one environment on both sides "
            "(config key 'agent.python'), then release the allocation and take it again"
        )


class ActorError(MonarchError):
    """Base of what goes wrong in a call to an actor."""

    exit_code = 1


class ActorFailed(ActorError):
    """An endpoint raised on one rank, and its exception could not travel as itself.

    Args:
        where: actor, endpoint, rank and host.
        type_name: class of the remote exception.
        message: its text.
        remote_traceback: the formatted remote traceback.
    """

    def __init__(self, where: str, type_name: str, message: str, remote_traceback: str) -> None:
        super().__init__(where, type_name, message, remote_traceback)
        self.where = where
        self.type_name = type_name
        self.message = message
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        return f"{self.where} raised {self.type_name}: {self.message}\n{self.remote_traceback}"


class ActorDied(ActorError):
    """The actor cannot answer: it, its proc or its host is gone.

    Args:
        where: actor, rank and host.
        cause: why, in words: exit code, signal, failed constructor, lost host.
    """

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(where, cause)
        self.where = where
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.where} died: {self.cause}"


class DeliveryUnknown(ActorError):
    """A call was sent, no answer came, and the peer can no longer be asked.

    The endpoint may have run, at most once.
    """

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(where, cause)
        self.where = where
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.where} may or may not have run: {self.cause}"


class MeshError(ActorError):
    """Several ranks of one call failed.

    Args:
        where: actor mesh and endpoint.
        failures: the exception of each failed rank, by rank.
    """

    def __init__(self, where: str, failures: Mapping[int, BaseException]) -> None:
        super().__init__(where, dict(failures))
        self.where = where
        self.failures = dict(failures)

    def __str__(self) -> str:
        rank, first = min(self.failures.items())
        others = ", ".join(str(r) for r in sorted(self.failures)[1:9])
        more = ", ..." if len(self.failures) > 9 else ""
        return (
            f"{self.where} failed on {len(self.failures)} ranks; first rank {rank}: "
            f"{type(first).__name__}: {first} (also on ranks {others}{more})"
        )


class SpawnError(ActorError):
    """A proc could not be started.

    Args:
        host: where.
        cause: exit code, signal or the operating system's words.
        last_lines: what the proc wrote last.
    """

    def __init__(self, host: str, cause: str, last_lines: Sequence[str] = ()) -> None:
        super().__init__(host, cause, tuple(last_lines))
        self.host = host
        self.cause = cause
        self.last_lines = tuple(last_lines)

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.last_lines)
        return f"no proc on {self.host}: {self.cause}{lines}"


class LabError(MonarchError):
    """The Slurm lab on this machine (`monarch_hpc.testing.slurmlab`) cannot do what was asked.

    Args:
        lab: the lab's name or folder.
        problem: what is wrong and what to do.
    """

    def __init__(self, lab: str, problem: str) -> None:
        super().__init__(lab, problem)
        self.lab = lab
        self.problem = problem

    def __str__(self) -> str:
        return f"slurmlab '{self.lab}': {self.problem}"


class InternalError(MonarchError):
    """A bug of ours."""

    exit_code = 70

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.problem}; this is a bug in monarch-hpc: please report it with the lines above"
