"""`ready.json`: the head's report that it no longer waits for agents, with all that a program needs to attach."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_hpc.allocation.attempts import newest_attempt
from monarch_hpc.allocation.document import Document, read_document, write_document
from monarch_hpc.allocation.files import is_over
from monarch_hpc.allocation.heads import read_head
from monarch_hpc.allocation.settings import name_of
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, VersionMismatch
from monarch_hpc.core.version import PYTHON_VERSION, __version__
from monarch_hpc.wire.frames import PROTOCOL

if TYPE_CHECKING:
    from monarch_hpc.wire.control.allocation import HostEntry

__all__ = [
    "READY",
    "Ready",
    "ReadyHost",
    "check_allocation",
    "load_ready",
    "make_ready",
    "parse_ready",
    "read_ready",
    "render_ready",
    "write_ready",
]

READY = "ready.json"


@dataclass(frozen=True, slots=True)
class ReadyHost:
    """A host whose agent has reported, with what Slurm granted it; see `HostEntry`."""

    rank: int
    name: str
    addresses: list[str]
    num_cpus: int
    gpus: list[str]
    memory_bytes: int
    interfaces: dict[str, str]
    group: str = ""
    component: int = -1
    job_id: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """The contents of ``ready.json``.

    Attributes:
        protocol: version of the protocol between processes; *package* and *python* are versions too.
        machine: the processor architecture of the head's host, see `platform.machine`.
        job_id: Slurm's number of the job of the head's host; None without Slurm.
        hosts: the hosts whose agent has joined.
        missing: names of the other hosts.
        head: rank of the head's host, in the head's *term*.
    """

    allocation: str
    protocol: int
    package: str
    python: str
    machine: str
    job_id: int | None
    hosts: tuple[ReadyHost, ...]
    missing: tuple[str, ...]
    head: int
    term: int

    @property
    def addresses(self) -> list[str]:
        """Addresses of the head; empty if its host is missing."""
        return next((host.addresses for host in self.hosts if host.rank == self.head), [])

    @property
    def names(self) -> dict[int, str]:
        """Names of the hosts, by rank."""
        return {host.rank: host.name for host in self.hosts}

    def component_of(self, rank: int) -> int:
        """The component of a heterogeneous job that has the host with this rank; -1 in any other job."""
        return next((host.component for host in self.hosts if host.rank == rank), -1)

    def job_of(self, rank: int) -> int | None:
        """The Slurm job that has the host with this rank; None without Slurm."""
        return next((host.job_id for host in self.hosts if host.rank == rank), 0) or self.job_id

    @property
    def head_name(self) -> str:
        """Name of the head's host; empty if that is missing."""
        return self.names.get(self.head, "")


def make_ready(
    allocation: str,
    job_id: int | None,
    entries: Sequence[HostEntry],
    missing: Sequence[str],
    head: int = 0,
    term: int = 1,
) -> Ready:
    """Make the report of a head with this interpreter and package."""
    hosts = tuple(
        ReadyHost(
            rank=entry.rank,
            name=entry.name,
            addresses=entry.addresses,
            num_cpus=len(entry.cpus),
            gpus=entry.gpus,
            memory_bytes=entry.memory_bytes,
            interfaces=entry.interfaces,
            group=entry.group,
            component=entry.component,
            job_id=entry.job_id,
        )
        for entry in entries
    )
    machine = os.uname().machine
    return Ready(allocation, PROTOCOL, __version__, PYTHON_VERSION, machine, job_id, hosts, tuple(missing), head, term)


def render_ready(ready: Ready) -> dict[str, object]:
    """Return *ready* as plain data for JSON."""
    return {
        "allocation": ready.allocation,
        "protocol": ready.protocol,
        "package": ready.package,
        "python": ready.python,
        "machine": ready.machine,
        "job_id": ready.job_id,
        "hosts": [
            {
                "rank": host.rank,
                "name": host.name,
                "addresses": host.addresses,
                "cpus": host.num_cpus,
                "gpus": host.gpus,
                "memory_bytes": host.memory_bytes,
                "interfaces": host.interfaces,
                "group": host.group,
                "component": host.component,
                "job_id": host.job_id,
            }
            for host in ready.hosts
        ],
        "missing": list(ready.missing),
        "head": ready.head,
        "term": ready.term,
    }


def parse_ready(document: Document) -> Ready:
    """Read what `render_ready` rendered.

    Raises:
        ConfigError: a field is missing or of the wrong type.
    """
    return Ready(
        allocation=document.text("allocation"),
        protocol=document.whole("protocol"),
        package=document.text("package"),
        python=document.text("python"),
        machine=document.text("machine"),
        job_id=None if document.fields.get("job_id") is None else document.whole("job_id"),
        hosts=tuple(_parse_host(host) for host in document.documents("hosts")),
        missing=tuple(document.texts("missing")),
        head=document.whole("head"),
        term=document.whole("term"),
    )


def _parse_host(document: Document) -> ReadyHost:
    interfaces = document.document("interfaces")
    return ReadyHost(
        rank=document.whole("rank"),
        name=document.text("name"),
        addresses=document.texts("addresses"),
        num_cpus=document.whole("cpus"),
        gpus=document.texts("gpus"),
        memory_bytes=document.whole("memory_bytes"),
        interfaces={name: interfaces.text(name) for name in interfaces.fields},
        group=document.text("group"),
        component=document.whole("component"),
        job_id=document.whole("job_id"),
    )


def write_ready(folder: Path, ready: Ready) -> None:
    """Publish for the login side that the agents are ready, or which ones are missing."""
    write_document(folder / READY, render_ready(ready))


def load_ready(folder: Path) -> Ready:
    """Read ``ready.json`` of one attempt; raises `FileNotFoundError` if the head has not written it.

    A head of a later term than the file's writer is in its place.
    """
    ready, head = parse_ready(read_document(folder / READY)), read_head(folder)
    return ready if head is None or head.term <= ready.term else replace(ready, head=head.rank, term=head.term)


def read_ready(directory: Path) -> Ready | None:
    """Read ``ready.json`` of the newest attempt; None if the head has not written it yet.

    Raises:
        ConfigError: the file is malformed.
    """
    folder = newest_attempt(directory)[1]
    try:
        # Listed for NFS, see `newest_attempt`.
        return load_ready(folder) if READY in os.listdir(folder) else None
    except FileNotFoundError:
        return None


def check_allocation(directory: Path) -> Ready:
    """Read ``ready.json`` and check that this process can attach; nothing is dialled.

    Raises:
        AllocationError: the allocation has ended, or its agents are not ready.
        VersionMismatch: the two sides run incompatible versions.
    """
    ready = read_ready(directory)
    if not directory.is_dir():
        raise AllocationError(name_of(directory), f"its directory {directory} is gone: it has ended")
    if is_over(newest_attempt(directory)[1]):
        raise AllocationError(name_of(directory), "its Slurm job has ended; see 'monarch-hpc status' for how")
    if ready is None:
        raise AllocationError(
            name_of(directory), "its agents are not ready yet; 'monarch-hpc status' shows how far it is"
        )
    if not ready.addresses:
        raise AllocationError(name_of(directory), f"its head's host is missing (missing: {', '.join(ready.missing)})")
    there = f"on {ready.head_name}"
    if ready.protocol != PROTOCOL:
        raise VersionMismatch("the protocol", str(PROTOCOL), f"{ready.protocol} {there}")
    if ready.package != __version__:
        raise VersionMismatch("monarch_hpc", __version__, f"{ready.package} {there}")
    # Values travel as this processor's bytes, and its Python cannot load what was compiled for the other.
    if ready.machine != os.uname().machine:
        raise VersionMismatch("the processor", os.uname().machine, f"{ready.machine} {there}")
    here = PYTHON_VERSION
    if ready.python.split(".")[:2] != here.split(".")[:2]:
        raise VersionMismatch("Python", f"{here} ({sys.executable})", f"{ready.python} {there}")
    return ready
