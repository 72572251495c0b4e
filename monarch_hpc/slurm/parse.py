"""Parses the output of Slurm's commands.

It is text rather than JSON: the text of `squeue -o` and `scontrol -o` has been stable for a decade, while the JSON
changes with each release, is missing in old ones, and ignores squeue's filters in 22.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from monarch_hpc.core.errors import SlurmParseError
from monarch_hpc.slurm.states import SlurmState

__all__ = [
    "SQUEUE_FORMAT",
    "JobDetail",
    "QueueRow",
    "Reservation",
    "parse_job_id",
    "parse_partitions",
    "parse_queue",
    "parse_show_job",
    "parse_show_reservations",
]

# `-o`, not `-O`: the long form cuts fields at 20 characters in old releases. The reason comes last, because
# it is free text.
SQUEUE_FORMAT = "%A|%j|%T|%D|%N|%e|%L|%r"

# Keys of `scontrol -o show` begin with a capital letter and contain no space; the value extends to the next key.
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9:/_]*)=")
# What scontrol and squeue print for "nothing".
_NOTHING = frozenset({"", "(null)", "N/A", "None", "Unknown", "NONE"})


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
    """One job as scontrol shows it, which it does for some minutes after the job's end, too.

    *restarts* is the number of requeues so far; *requeues* tells whether the job may be requeued.
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


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation: its name, its window as Slurm prints it, and who may use it."""

    name: str
    start: str
    end: str
    state: str
    users: str
    accounts: str


def parse_job_id(text: str) -> int:
    """Parse the output of ``sbatch --parsable``: ``123`` or ``123;cluster``."""
    # At some sites plugins print other lines before it.
    lines = text.split()
    match = re.fullmatch(r"(\d+)(?:;\S+)?", lines[-1]) if lines else None
    if match is None:
        raise SlurmParseError("sbatch --parsable", text)
    return int(match[1])


def parse_queue(text: str) -> tuple[QueueRow, ...]:
    """Parse the output of squeue with `SQUEUE_FORMAT`."""
    return tuple(_parse_row(line) for line in text.splitlines() if line.strip())


def parse_show_job(text: str) -> JobDetail:
    """Parse the output of ``scontrol -o show job N``; for a heterogeneous or array job, its first line.

    Raises:
        SlurmParseError: the text contains no job.
    """
    line = next((line for line in text.splitlines() if line.startswith("JobId=")), "")
    fields = _fields(line)
    try:
        return JobDetail(
            job_id=int(fields["JobId"]),
            name=fields["JobName"],
            state=SlurmState.parse(fields["JobState"]),
            slurm_state=fields["JobState"],
            reason=_something(fields.get("Reason", "")),
            exit_code=fields.get("ExitCode", ""),
            hosts=_something(fields.get("NodeList", "")),
            batch_host=_something(fields.get("BatchHost", "")),
            end=_something(fields.get("EndTime", "")),
            restarts=int(fields.get("Restarts", "0")),
            requeues=fields.get("Requeue", "0") != "0",
        )
    except (KeyError, ValueError) as error:
        raise SlurmParseError("scontrol -o show job", text) from error


def parse_show_reservations(text: str) -> tuple[Reservation, ...]:
    """Parse the output of ``scontrol -o show reservation``; empty if it says that there are none."""
    found: list[Reservation] = []
    for line in text.splitlines():
        fields = _fields(line)
        if "ReservationName" in fields:
            found.append(
                Reservation(
                    name=fields["ReservationName"],
                    start=fields.get("StartTime", ""),
                    end=fields.get("EndTime", ""),
                    state=fields.get("State", ""),
                    users=_something(fields.get("Users", "")),
                    accounts=_something(fields.get("Accounts", "")),
                )
            )
    return tuple(found)


def parse_partitions(text: str) -> tuple[str, ...]:
    """Parse the output of ``sinfo -h -o %R``: the partitions' names without duplicates, in its order."""
    return tuple(dict.fromkeys(text.split()))


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
        num_hosts=int(first[0]) if (first := re.match(r"\d+", num_hosts)) else 0,
        hosts=_something(hosts),
        end=_something(end),
        left="" if left in {"INVALID", "NOT_SET"} else _something(left),
        # squeue writes the spaces of a reason as underscores.
        reason=_something(reason).replace("_", " "),
    )


def _fields(line: str) -> dict[str, str]:
    marks = list(_FIELD.finditer(line))
    fields: dict[str, str] = {}
    for number, mark in enumerate(marks, start=1):
        end = marks[number].start() if number < len(marks) else len(line)
        # The first one wins: a later comment may contain any text, even "JobState=".
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields


def _something(value: str) -> str:
    return "" if value in _NOTHING else value
