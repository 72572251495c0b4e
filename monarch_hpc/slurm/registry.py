"""The login node's registry of allocations: a folder for each, with a file for each event.

    <state>/<uuid8>/record.json    the intent, written before sbatch is called; also of a job that joins an allocation
    <state>/<uuid8>/job.json       Slurm's job id
    <state>/<uuid8>/joins.json     the allocation that its job has joined later, with all its hosts
    <state>/<uuid8>/release.json   the release was requested
    <state>/<uuid8>/parted.json    how its first job ended, after which further ones go on
    <state>/<uuid8>/ended.json     how the allocation ended
    <state>/names/<name>/<number>  the allocation that has the name: a link whose target is the uuid8
    <state>/current.json           the name of the current allocation
    <state>/queue.json             squeue's last output, shared by all commands of this user

Every file is written once and whole, so that processes cannot overwrite each other's changes, and no locks are needed,
which shared file systems may not honour.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from monarch_hpc.allocation.files import remove_key
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.storage.files import private_dir, read_json, write_json
from monarch_hpc.slurm.commands.jobs import QueueRow, parse_queue
from monarch_hpc.slurm.record import (
    SCHEMA,
    AllocationRecord,
    Ended,
    load_record,
    owner_lives,
    read_object,
    read_optional,
    record_document,
)

__all__ = ["Registry", "Snapshot", "check_name"]

_KEPT_ENDED = 50
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHORT_ID = re.compile(r"[0-9a-f]{8}")
# Longer than any command takes from making a folder to writing its record.
_UNFINISHED_S = 3600.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cached answer of squeue.

    Args:
        at_s: when squeue was asked, in seconds since the epoch.
        names: the job names in the request.
        text: its output.
    """

    at_s: float
    names: frozenset[str]
    text: str

    def rows(self) -> dict[str, QueueRow]:
        """Return the listed jobs by name."""
        return {row.name: row for row in parse_queue(self.text)}


class Registry:
    """The records under one folder.

    Args:
        root: the folder; made if it is missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = private_dir(root)

    def create(self, record: AllocationRecord) -> None:
        """Write the intent, then claim the name, if it is not that of the allocation that the job joins.

        Raises:
            AllocationError: a live allocation has the name; the intent is removed again.
            ConfigError: the name is not valid.
        """
        check_name(record.name)
        self._folder(record).mkdir(0o700)
        write_json(self._folder(record) / "record.json", record_document(record))
        holder = None if record.joins else self._take_name(record)
        if holder is not None:
            shutil.rmtree(self._folder(record))
            raise AllocationError(record.name, _in_use(holder))

    def set_job(self, record: AllocationRecord, job_id: int, now_s: float) -> AllocationRecord:
        """Record Slurm's id of the job."""
        write_json(self._folder(record) / "job.json", {"schema": SCHEMA, "job_id": job_id, "submitted_s": now_s})
        return replace(record, job_id=job_id, submitted_s=now_s)

    def join(self, record: AllocationRecord, allocation: str, name: str, first_rank: int) -> AllocationRecord:
        """Record that the job of an allocation joins another one; its own name becomes free."""
        write_json(
            self._folder(record) / "joins.json",
            {"schema": SCHEMA, "joins": allocation, "name": name, "first_rank": first_rank},
        )
        return replace(record, joins=allocation, name=name, first_rank=first_rank)

    def request_release(self, record: AllocationRecord, why: str) -> AllocationRecord:
        """Record that the allocation is to be released, and why."""
        write_json(self._folder(record) / "release.json", {"schema": SCHEMA, "why": why})
        return replace(record, release_why=why)

    def part(self, record: AllocationRecord, ended: Ended) -> AllocationRecord:
        """Record how the first job of an allocation ended, which goes on with others."""
        write_json(self._folder(record) / "parted.json", {"schema": SCHEMA, **asdict(ended)})
        return replace(record, parted=ended)

    def close(self, record: AllocationRecord, ended: Ended) -> AllocationRecord:
        """Record how the allocation ended; its key is removed, and its name becomes free."""
        remove_key(record.directory)
        write_json(self._folder(record) / "ended.json", {"schema": SCHEMA, **asdict(ended)})
        return replace(record, ended=ended)

    def records(self) -> tuple[AllocationRecord, ...]:
        """Return the records of all allocations, the oldest first."""
        return tuple(record for record in self.jobs() if not record.joins)

    def joined(self, record: AllocationRecord) -> list[AllocationRecord]:
        """Return the live records of the jobs that were asked for to join an allocation, the oldest first."""
        return [job for job in self.jobs() if job.joins == record.allocation and job.live]

    def jobs(self) -> tuple[AllocationRecord, ...]:
        """Return all records, the oldest first: of allocations, and of further jobs that join them."""
        found: list[AllocationRecord] = []
        for folder in self._folders():
            # The folder may be new, its record not yet written, or just being removed by `prune`.
            with contextlib.suppress(FileNotFoundError):
                found.append(load_record(folder))
        return tuple(sorted(found, key=lambda record: (record.created_s, record.allocation)))

    def find(self, name: str | None) -> AllocationRecord:
        """Return the allocation that a command refers to.

        Args:
            name: its name, or the first 8 digits of its uuid. None stands for the current one if one was chosen, else
                for ``default``, or for the only live one.

        Raises:
            AllocationError: there is no such allocation, or the choice is ambiguous.
        """
        records = self.records()
        if name is not None:
            named = [record for record in records if name in (record.name, record.short_id)]
            if not named:
                known = ", ".join(sorted({record.name for record in records if record.live})) or "none"
                hint = f"; take one: monarch-hpc alloc {name}" if _NAME.fullmatch(name) else ""  # it would be refused
                raise AllocationError(name, f"no such allocation (live: {known}){hint}")
            # An ended allocation only if no live one has the name.
            return max(named, key=lambda record: (record.live, record.created_s))
        live = [record for record in records if record.live]
        current = self.current()
        if current is not None and live and current not in [record.name for record in live]:
            names = ", ".join(record.name for record in live)
            # Not just another one: that would run programs where they were not meant to.
            raise AllocationError(
                current, f"the current allocation has ended (live: {names}); choose one: monarch-hpc ctx use NAME"
            )
        for record in live:
            if record.name == (current or "default"):
                return record
        if len(live) == 1:
            return live[0]
        if live:
            names = ", ".join(record.name for record in live)
            raise AllocationError("default", f"several allocations live; name one of them: {names}")
        raise AllocationError("default", "there is no allocation; take one: monarch-hpc alloc -N HOSTS -t MINUTES")

    def prune(self, now_s: float) -> None:
        """Remove all but the newest records of ended allocations, and their directories."""
        ended = [record for record in self.jobs() if not record.live]
        for record in ended[:-_KEPT_ENDED]:
            # Only directories named by us: every allocation's directory is called by its short id.
            if record.directory.name == record.short_id:
                shutil.rmtree(record.directory, ignore_errors=True)
            shutil.rmtree(self._folder(record), ignore_errors=True)
        for folder in self._folders():
            with contextlib.suppress(FileNotFoundError):
                if not (folder / "record.json").exists() and now_s - folder.stat().st_mtime > _UNFINISHED_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def set_current(self, name: str | None) -> None:
        """Choose the current allocation by its name; None for no choice."""
        path = self.root / "current.json"
        if name is None:
            path.unlink(missing_ok=True)
        else:
            write_json(path, {"schema": SCHEMA, "name": name})

    def current(self) -> str | None:
        """Return the name of the current allocation, which may have ended; None if none was chosen."""
        document = read_optional(self.root / "current.json")
        return None if document is None else str(document.get("name"))

    def load_snapshot(self) -> Snapshot | None:
        """Return the cached answer of squeue; None if there is none."""
        try:
            document = read_object(read_json(self.root / "queue.json"), self.root / "queue.json")
            if document.get("schema") != SCHEMA:
                return None
            names = frozenset(str(document["names"]).split())
            return Snapshot(float(str(document["at_s"])), names, str(document["text"]))
        except (FileNotFoundError, KeyError, ValueError):
            return None

    def store_snapshot(self, snapshot: Snapshot) -> None:
        """Cache an answer of squeue for the next command."""
        names = " ".join(sorted(snapshot.names))
        write_json(
            self.root / "queue.json", {"schema": SCHEMA, "at_s": snapshot.at_s, "names": names, "text": snapshot.text}
        )

    def drop_snapshot(self) -> None:
        """Forget the cached answer of squeue: a job was changed."""
        (self.root / "queue.json").unlink(missing_ok=True)

    def _folders(self) -> list[Path]:
        return [self.root / name for name in os.listdir(self.root) if _SHORT_ID.fullmatch(name)]

    def _folder(self, record: AllocationRecord) -> Path:
        return self.root / record.short_id

    def _take_name(self, record: AllocationRecord) -> AllocationRecord | None:
        """Claim the name; return None on success, else the live record that has it.

        Claims are numbered, and the highest number wins. A link is made atomically, and only one process can make the
        next one, so that a claim whose holder has ended need not be removed, which would be a race.
        """
        claims = private_dir(private_dir(self.root / "names") / record.name)
        while True:
            numbers = sorted(int(name) for name in os.listdir(claims) if name.isdigit())
            if numbers:
                holder = os.readlink(claims / str(numbers[-1]))
                with contextlib.suppress(FileNotFoundError):
                    held = load_record(self.root / holder)
                    if held.live and not held.joins:
                        return held
            number = numbers[-1] + 1 if numbers else 1
            try:
                os.symlink(record.short_id, claims / str(number))
            except FileExistsError:
                continue
            # Between the listing and the link, others may have claimed the name, ended, and removed this number.
            late = max(int(name) for name in os.listdir(claims) if name.isdigit()) > number
            for old in [number] if late else numbers:
                with contextlib.suppress(FileNotFoundError):
                    (claims / str(old)).unlink()
            if not late:
                return None


def check_name(name: str) -> None:
    """Raise `ConfigError` unless *name* can name an allocation, and a folder."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "NAME",
            repr(name),
            "command line",
            "must be 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first",
        )


def _in_use(holder: AllocationRecord) -> str:
    owner = holder.owner
    if holder.job_id is None and owner_lives(owner) is False:
        return (
            "the command that asked for it died a moment ago, and its job may yet appear; the name is free again "
            "half a minute after that command began"
        )
    what = f"job {holder.job_id}" if holder.job_id else f"being submitted by process {owner.pid} on {owner.host}"
    return (
        f"exists already ({what}); use it with 'monarch-hpc run -a {holder.name} SCRIPT', give it back with "
        f"'monarch-hpc release {holder.name}', or take another under another name"
    )
