"""What Slurm's commands print, as data.

Text, not JSON: the text of `squeue -o` and `scontrol -o` has been the same for a decade, while the
JSON changes its shape with each release, lacks in old ones, and ignores squeue's filters in 22.05.
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

# Keys of `scontrol -o show` begin with a capital letter and hold no space; what follows up to the next key is
# the value.
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9:/_]*)=")
# What scontrol and squeue print for "nothing".
_NOTHING = frozenset({"", "(null)", "N/A", "None", "Unknown", "NONE"})


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One job as squeue lists it.

    Args:
        job_id: Slurm's number.
        name: the job's name.
        state: what it is doing.
        word: Slurm's own word for it.
        num_hosts: hosts it has, or asks for.
        hosts: compact list of the hosts it has; empty while it waits.
        end: when it ends at the latest, as Slurm prints it; empty while unknown.
        left: time left, as Slurm prints it; empty while unknown.
        reason: why it waits, in Slurm's own words; empty if it does not.
    """

    job_id: int
    name: str
    state: SlurmState
    word: str
    num_hosts: int
    hosts: str
    end: str
    left: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job as scontrol shows it, also for some minutes after its end.

    *restarts* counts how often it was requeued, *requeues* tells whether that may happen.
    """

    job_id: int
    name: str
    state: SlurmState
    word: str
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
    """Read the answer of ``sbatch --parsable``: ``123`` or ``123;cluster``."""
    # Plugins of some sites print lines of their own before it.
    lines = text.split()
    match = re.fullmatch(r"(\d+)(?:;\S+)?", lines[-1]) if lines else None
    if match is None:
        raise SlurmParseError("sbatch --parsable", text)
    return int(match[1])


def parse_queue(text: str) -> tuple[QueueRow, ...]:
    """Read what squeue prints with `SQUEUE_FORMAT`."""
    return tuple(_parse_row(line) for line in text.splitlines() if line.strip())


def parse_show_job(text: str) -> JobDetail:
    """Read the line of ``scontrol -o show job N``.

    Raises:
        SlurmParseError: the line of a job it is not. Of a heterogeneous or array job the first line counts.
    """
    line = next((line for line in text.splitlines() if line.startswith("JobId=")), "")
    fields = _fields(line)
    try:
        return JobDetail(
            job_id=int(fields["JobId"]),
            name=fields["JobName"],
            state=SlurmState.parse(fields["JobState"]),
            word=fields["JobState"],
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
    """Read the lines of ``scontrol -o show reservation``; none where it says that there are none."""
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
    """Read the names that ``sinfo -h -o %R`` prints, each once, in its order."""
    return tuple(dict.fromkeys(text.split()))


def _parse_row(line: str) -> QueueRow:
    parts = line.strip().split("|", 7)
    if len(parts) != 8 or not parts[0].isdigit():
        raise SlurmParseError("squeue", line)
    job_id, name, word, num_hosts, hosts, end, left, reason = (part.strip() for part in parts)
    return QueueRow(
        job_id=int(job_id),
        name=name,
        state=SlurmState.parse(word),
        word=word,
        # A range such as 2-4 while a job waits that asked for one.
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
        # The first wins: a comment further on may hold anything, also "JobState=".
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields


def _something(value: str) -> str:
    return "" if value in _NOTHING else value
