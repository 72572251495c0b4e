"""Parses what Slurm's commands print of jobs.

It is text rather than JSON: the text of `squeue -o` and `scontrol -o` has been stable for a decade, while the JSON
changes with each release, is missing in old ones, and ignores squeue's filters in 22.05.
"""

from __future__ import annotations

import re
from dataclasses import replace

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import SlurmParseError
from monarch_hpc.slurm.commands.fields import fields_of, parse_time, something
from monarch_hpc.slurm.commands.states import SlurmState

__all__ = [
    "SACCT_FORMAT",
    "SQUEUE_FORMAT",
    "WAITING_FORMAT",
    "JobDetail",
    "PlannedStart",
    "QueueRow",
    "WaitingJob",
    "parse_accounted",
    "parse_job_id",
    "parse_left",
    "parse_planned_start",
    "parse_queue",
    "parse_show_job",
    "parse_waiting",
]

# `-o`, not `-O`: the long form cuts fields at 20 characters in old releases. The reason comes last, because
# it is free text.
SQUEUE_FORMAT = "%A|%j|%T|%D|%N|%e|%L|%r"

SACCT_FORMAT = "JobIDRaw,State,ExitCode,Start,End,NNodes,NodeList,JobName"

# Of jobs that wait. A job's name may contain any character; the fields behind it are counted from the end.
WAITING_FORMAT = "%A|%j|%D|%l|%P|%V|%S|%r"

_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", re.ASCII)

# Of a heterogeneous job, several of whose components may be in different partitions, sbatch names none.
_PLANNED = re.compile(r"Job \d+ to start at (\S+) using \d+ processors on (?:nodes )?(\S+)(?: in partition (\S+))?")


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One job as squeue lists it.

    Args:
        job_id: Slurm's number.
        name: the job's name.
        state: the job's state.
        slurm_state: the state as Slurm prints it.
        num_hosts: number of hosts granted, or requested while the job is pending.
        hosts: compact list of the granted hosts; empty while the job is pending.
        end: end of the time limit, as Slurm prints it; empty while unknown.
        left: time left, as Slurm prints it; empty while unknown.
        reason: why the job is pending, in Slurm's words; empty otherwise.
    """

    job_id: int
    name: str
    state: SlurmState
    slurm_state: str
    num_hosts: int
    hosts: str
    end: str
    left: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job as scontrol shows it, which it does for some minutes after the job's end, too; or as sacct does later.

    *restarts* is the number of requeues so far; *requeues* tells whether the job may be requeued; *preempted* whether
    it was chosen to make room for another; *start*, *end* and *limit* are as Slurm prints them. *components* are, from
    scontrol, the hosts of each component of a heterogeneous job; of any other job, its hosts.
    """

    job_id: int
    name: str
    state: SlurmState
    slurm_state: str
    reason: str
    exit_code: str
    hosts: str
    batch_host: str
    end: str
    restarts: int = 0
    requeues: bool = False
    limit: str = ""
    start: str = ""
    num_hosts: int = 0
    reservation: str = ""
    source: str = "scontrol"
    preempted: bool = False
    components: tuple[str, ...] = ()

    @property
    def end_s(self) -> float | None:
        """The end of the job in seconds since the epoch; None while it is unknown."""
        return parse_time(self.end)


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """One job that waits, as squeue lists it; times as Slurm prints them, *start* empty if Slurm has no estimate."""

    job_id: int
    name: str
    num_hosts: str
    limit: str
    partition: str
    submitted: str
    start: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """The answer of ``sbatch --test-only``: when and where a job would start; an empty partition is unknown."""

    start: str
    hosts: str
    partition: str


def parse_job_id(text: str) -> int:
    """Parse the output of ``sbatch --parsable``: ``123`` or ``123;cluster``."""
    # At some sites plugins print other lines before it.
    lines = text.split()
    match = re.fullmatch(r"(\d+)(?:;\S+)?", lines[-1]) if lines else None
    if match is None:
        raise SlurmParseError("sbatch --parsable", text)
    return int(match[1])


def parse_queue(text: str) -> tuple[QueueRow, ...]:
    """Parse the output of squeue with `SQUEUE_FORMAT`, with one row for a heterogeneous job.

    Its components have one name, which no other job has, and the first of them has the job's state.
    """
    rows: dict[str, QueueRow] = {}
    for row in map(_parse_row, filter(str.strip, text.splitlines())):
        known = rows.setdefault(row.name, row)
        if known is not row:
            first, later = sorted((known, row), key=lambda one: one.job_id)
            hosts = ",".join(filter(None, (first.hosts, later.hosts)))
            rows[row.name] = replace(first, num_hosts=first.num_hosts + later.num_hosts, hosts=hosts)
    return tuple(rows.values())


def parse_show_job(text: str) -> JobDetail:
    """Parse the output of ``scontrol -o show job N``; for an array, its first line.

    For a heterogeneous job, the first component's, with the hosts of all.

    Raises:
        SlurmParseError: the text contains no job.
    """
    jobs = [fields_of(line) for line in text.splitlines() if line.startswith("JobId=")] or [{}]
    fields = jobs[0]
    components = jobs if "HetJobId" in fields else jobs[:1]
    hosts = tuple(something(component.get("NodeList", "")) for component in components)
    try:
        return JobDetail(
            job_id=int(fields["JobId"]),
            name=fields["JobName"],
            state=SlurmState.parse(fields["JobState"]),
            slurm_state=fields["JobState"],
            reason=something(fields.get("Reason", "")),
            exit_code=fields.get("ExitCode", ""),
            hosts=",".join(filter(None, hosts)),
            batch_host=something(fields.get("BatchHost", "")),
            end=something(fields.get("EndTime", "")),
            restarts=int(fields.get("Restarts", "0")),
            requeues=fields.get("Requeue", "0") != "0",
            limit=something(fields.get("TimeLimit", "")),
            start=something(fields.get("StartTime", "")),
            num_hosts=sum(_number(component.get("NumNodes", "")) for component in components),
            reservation=something(fields.get("Reservation", "")),
            preempted=bool(something(fields.get("PreemptTime", ""))),
            components=hosts,
        )
    except (KeyError, ValueError) as error:
        raise SlurmParseError("scontrol -o show job", text) from error


def parse_waiting(text: str) -> tuple[WaitingJob, ...]:
    """Parse the output of squeue with `WAITING_FORMAT`."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        parts = [part.strip() for part in line.split("|")]
        if len(parts) < 8 or not parts[0].isdigit():
            raise SlurmParseError("squeue", line)
        num_hosts, limit, partition, submitted, start, reason = parts[-6:]
        start, reason = something(start), something(reason).replace("_", " ")
        name = "|".join(parts[1:-6])
        found.append(WaitingJob(int(parts[0]), name, num_hosts, limit, partition, submitted, start, reason))
    return tuple(found)


def parse_left(text: str) -> float | None:
    """Parse squeue's ``[D-][HH:]MM:SS``; None if there is no limit, or it is unknown."""
    match = _LEFT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_planned_start(text: str) -> PlannedStart:
    """Parse the output of ``sbatch --test-only``, which may stand among the messages of a site's plugins.

    Raises:
        SlurmParseError: it names no start.
    """
    match = _PLANNED.search(text)
    if match is None:
        raise SlurmParseError("sbatch --test-only", text)
    return PlannedStart(*match.groups(""))


def parse_accounted(text: str, name: str) -> JobDetail | None:
    """Parse the output of sacct with `SACCT_FORMAT`; None if it has no job of this name.

    Numbers of jobs are used again after years or a loss of slurmctld's state, names of ours are not.
    """
    for line in reversed(text.splitlines()):
        parts = line.split("|", 7)
        if len(parts) != 8 or parts[7] != name or not parts[0].isdecimal():
            continue
        job_id, state, exit_code, start, end, num_hosts, hosts, _ = parts
        return JobDetail(
            job_id=int(job_id),
            name=name,
            state=SlurmState.parse(state),
            slurm_state=state,
            reason="",
            exit_code=exit_code,
            hosts=something(hosts),
            batch_host="",
            end=something(end),
            start=something(start),
            num_hosts=int(num_hosts) if num_hosts.isdecimal() else 0,
            source="sacct",
        )
    return None


def _number(text: str) -> int:
    """The number that *text* begins with; 0 if there is none."""
    return int(first[0]) if (first := re.match(r"\d+", text)) else 0


def _parse_row(line: str) -> QueueRow:
    parts = line.strip().split("|", 7)
    if len(parts) != 8 or not parts[0].isdigit():
        raise SlurmParseError("squeue", line)
    job_id, name, text, num_hosts, hosts, end, left, reason = (part.strip() for part in parts)
    return QueueRow(
        job_id=int(job_id),
        name=name,
        state=SlurmState.parse(text),
        slurm_state=text,
        # A range such as 2-4, for a pending job that requested one.
        num_hosts=_number(num_hosts),
        hosts=something(hosts),
        end=something(end),
        left="" if left in {"INVALID", "NOT_SET"} else something(left),
        # squeue writes the spaces of a reason as underscores.
        reason=something(reason).replace("_", " "),
    )
