"""The record of an allocation, or of a job that joins one: its fields, and its files in the registry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.machine.procfs import read_boot_id, read_stat
from monarch_hpc.core.storage.files import read_json

__all__ = [
    "SCHEMA",
    "AllocationRecord",
    "Ended",
    "OwnerProcess",
    "current_owner",
    "load_record",
    "owner_lives",
    "read_object",
    "read_optional",
    "record_document",
]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class OwnerProcess:
    """A process, identified by machine, boot, pid and start time: a pid alone may have been reused.

    Args:
        host: name of the machine.
        boot_id: Linux's id of that machine's boot.
        pid: process id.
        start_ticks: start time, in clock ticks since boot.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How an allocation ended.

    Args:
        state: Slurm's state, or ``REFUSED``, ``NEVER_SUBMITTED``, ``RELEASED`` or ``UNKNOWN``.
        reason: the reason as text.
        source: ``squeue``, ``scontrol``, ``sacct``, ``ended.json``, ``released.json`` or ``monarch-hpc``.
        at_s: when it was recorded, in seconds since the epoch.
    """

    state: str
    reason: str
    source: str
    at_s: float


@dataclass(frozen=True, slots=True)
class AllocationRecord:
    """The registry's record of an allocation.

    Args:
        allocation: its uuid, 32 hexadecimal digits.
        name: the name chosen by the user.
        directory: its private directory on the shared file system.
        num_hosts: number of hosts requested, as Slurm takes it.
        owner: the process that made the record.
        created_s: when the record was made, in seconds since the epoch.
        job_id: Slurm's number; None before sbatch answered.
        submitted_s: when sbatch answered, in seconds since the epoch.
        release_why: why its release was requested; empty if it was not.
        parted: how its first job ended, while the allocation goes on with further ones; None while it has that job.
        ended: how it ended; None while it lives.
        joins: the uuid of the allocation that its job joins, and whose name it has; empty for an allocation.
        first_rank: rank of its first host there.
        replaces: whether its hosts were requested in place of lost ones, by a program that heals.
    """

    allocation: str
    name: str
    directory: Path
    num_hosts: str
    owner: OwnerProcess
    created_s: float
    job_id: int | None = None
    submitted_s: float | None = None
    release_why: str = ""
    ended: Ended | None = None
    parted: Ended | None = None
    joins: str = ""
    first_rank: int = 0
    replaces: bool = False

    @property
    def short_id(self) -> str:
        """The first 8 digits of the uuid, which name the allocation's folders and job."""
        return self.allocation[:8]

    @property
    def job_name(self) -> str:
        """The unique name of the Slurm job."""
        return f"mh-{self.short_id}"

    @property
    def live(self) -> bool:
        """Whether the allocation has, may have, or is about to have a job."""
        return self.ended is None


def current_owner() -> OwnerProcess:
    """Return this process."""
    pid = os.getpid()
    return OwnerProcess(os.uname().nodename, read_boot_id(), pid, _start_ticks(pid) or 0)


def owner_lives(owner: OwnerProcess) -> bool | None:
    """Tell whether *owner* still runs; None if that cannot be seen from this machine."""
    if owner.host != os.uname().nodename:
        return None
    return owner.boot_id == read_boot_id() and _start_ticks(owner.pid) == owner.start_ticks


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process; None if it does not exist, or is a zombie."""
    found = read_stat(pid)
    return None if found is None or found.has_ended else found.start_ticks


def record_document(record: AllocationRecord) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "allocation": record.allocation,
        "name": record.name,
        "directory": str(record.directory),
        "num_hosts": record.num_hosts,
        "owner": asdict(record.owner),
        "created_s": record.created_s,
        "joins": record.joins,
        "first_rank": record.first_rank,
        "replaces": record.replaces,
    }


def load_record(folder: Path) -> AllocationRecord:
    """Read one allocation's files.

    Raises:
        FileNotFoundError: there is no record.
        ConfigError: a file belongs to another user, or was not written by this version.
    """
    path = folder / "record.json"
    document = read_object(read_json(path), path)
    job = read_optional(folder / "job.json")
    release = read_optional(folder / "release.json")
    joins = read_optional(folder / "joins.json") or document  # it moved there
    try:
        if document["schema"] != SCHEMA:
            raise ConfigError("", "", str(path), f"was written by another version (schema {document['schema']})")
        return AllocationRecord(
            allocation=str(document["allocation"]),
            name=str(joins["name"]),
            directory=Path(str(document["directory"])),
            num_hosts=str(document["num_hosts"]),
            owner=OwnerProcess(**read_object(document["owner"], path)),  # type: ignore[arg-type]  # checked by the schema number
            created_s=float(str(document["created_s"])),
            joins=str(joins.get("joins", "")),
            first_rank=int(str(joins.get("first_rank", 0))),
            replaces=document.get("replaces") is True,
            job_id=int(str(job["job_id"])) if job else None,
            submitted_s=float(str(job["submitted_s"])) if job else None,
            release_why=str(release["why"]) if release else "",
            parted=_load_end(folder / "parted.json"),
            ended=_load_end(folder / "ended.json"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("", "", str(path), f"is not a record of an allocation ({error!r}); move it away") from error


def _load_end(path: Path) -> Ended | None:
    ended = read_optional(path)
    if ended is None:
        return None
    return Ended(str(ended["state"]), str(ended["reason"]), str(ended["source"]), float(str(ended["at_s"])))


def read_optional(path: Path) -> Mapping[str, object] | None:
    try:
        return read_object(read_json(path), path)
    except FileNotFoundError:
        return None


def read_object(value: object, path: Path) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ConfigError("", "", str(path), "is not a JSON object; move it away")
    return value
