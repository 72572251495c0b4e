"""Files in the allocation's directory through which agents, head and login side find each other."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_hpc.core.attempts import newest_attempt
from monarch_hpc.core.errors import AllocationError, ConfigError, VersionMismatch
from monarch_hpc.core.files import private_dir, read_json, read_private, write_json
from monarch_hpc.core.version import __version__
from monarch_hpc.wire.frames import PROTOCOL

if TYPE_CHECKING:
    from monarch_hpc.wire.control.allocation import HostEntry

__all__ = [
    "KEY_BYTES",
    "Ready",
    "check_allocation",
    "claim",
    "read_head",
    "read_key",
    "read_ready",
    "render_ready",
    "write_head",
    "write_host",
    "write_ready",
]

KEY_BYTES = 32
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Ready:
    """The contents of ``ready.json``, which the head writes when it stops waiting for agents.

    Attributes:
        addresses: addresses of the head.
        hosts: names of the hosts whose agent has joined, by rank.
        missing: names of the other hosts.
    """

    allocation: str
    protocol: int
    package: str
    python: str
    job_id: int | None
    addresses: list[str]
    hosts: dict[int, str]
    missing: list[str]


def read_key(directory: Path) -> bytes:
    """Read the allocation's key.

    Raises:
        AllocationError: there is no key: the allocation was released, or has ended.
        ConfigError: the file is open to others, or has the wrong size.
    """
    path = directory / "key"
    try:
        key = read_private(path, KEY_BYTES)
    except FileNotFoundError as error:
        raise AllocationError(
            directory.name, "it has ended or was released; take one with 'monarch-hpc alloc'"
        ) from error
    if len(key) != KEY_BYTES:
        raise ConfigError("", "", str(path), f"holds {len(key)} bytes, a key has {KEY_BYTES}")
    return key


def claim(directory: Path, text: str) -> None:
    """Become the allocation's head, of which there is only one.

    Raises:
        AllocationError: it already has a head.
    """
    path = directory / "head.claim"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        holder = path.read_text(errors="replace").strip()
        raise AllocationError(directory.name, f"has a head already: {holder}; this second agent ends") from error
    with open(descriptor, "w") as file:
        file.write(text)


def write_host(directory: Path, entry: HostEntry, nonce: str) -> None:
    """Check that this host can write the shared directory, by reading back what it wrote.

    Raises:
        OSError, ConfigError: it cannot, or reads other contents.
    """
    path = private_dir(directory / "hosts") / f"{entry.rank}.json"
    write_json(path, {"schema": _SCHEMA, "rank": entry.rank, "name": entry.name, "pid": entry.pid, "nonce": nonce})
    if _object(read_json(path), path).get("nonce") != nonce:
        raise ConfigError("paths.shared", str(directory), str(path), "reads back other contents than were written")


def write_head(directory: Path, addresses: list[str]) -> None:
    """Publish the head's addresses for the other agents."""
    write_json(directory / "head.json", {"schema": _SCHEMA, "addresses": addresses})


def read_head(directory: Path) -> list[str] | None:
    """Return the head's addresses; None while it has not written them."""
    path = directory / "head.json"
    try:
        # Listing the directory makes NFS revalidate it; otherwise a missing file may stay cached for a minute.
        if path.name not in os.listdir(directory):
            return None
        return _texts(_object(read_json(path), path).get("addresses"), path)
    except FileNotFoundError:
        return None


def render_ready(allocation: str, job_id: int | None, hosts: list[HostEntry], missing: list[str]) -> dict[str, object]:
    """Return the content of ``ready.json``."""
    return {
        "schema": _SCHEMA,
        "allocation": allocation,
        "protocol": PROTOCOL,
        "package": __version__,
        "python": platform.python_version(),
        "job_id": job_id,
        "hosts": [
            {
                "rank": host.rank,
                "name": host.name,
                "addresses": host.addresses,
                "cpus": len(host.cpus),
                "gpus": host.gpus,
                "memory_bytes": host.memory_bytes,
                "interfaces": host.interfaces,
            }
            for host in hosts
        ],
        "missing": missing,
    }


def write_ready(directory: Path, document: Mapping[str, object]) -> None:
    """Publish for the login side that the agents are ready, or which ones are missing."""
    write_json(directory / "ready.json", document)


def read_ready(directory: Path) -> Ready | None:
    """Read ``ready.json`` of the newest attempt; None if the head has not written it yet.

    Raises:
        ConfigError: the file is malformed.
    """
    folder = newest_attempt(directory)[1]
    path = folder / "ready.json"
    try:
        if path.name not in os.listdir(folder):
            return None
        document = _object(read_json(path), path)
    except FileNotFoundError:
        return None
    try:
        hosts = [_object(host, path) for host in _list(document["hosts"], path)]
        head = next((host for host in hosts if host["rank"] == 0), None)
        job_id = document["job_id"]
        return Ready(
            allocation=str(document["allocation"]),
            protocol=int(str(document["protocol"])),
            package=str(document["package"]),
            python=str(document["python"]),
            job_id=None if job_id is None else int(str(job_id)),
            addresses=_texts(head["addresses"], path) if head is not None else [],
            hosts={int(str(host["rank"])): str(host["name"]) for host in hosts},
            missing=_texts(document["missing"], path),
        )
    except (KeyError, ValueError) as error:
        raise _unreadable(path) from error


def check_allocation(directory: Path) -> Ready:
    """Read ``ready.json`` and check that this process can attach; nothing is dialled.

    Raises:
        AllocationError: the allocation has ended, or its agents are not ready.
        VersionMismatch: the two sides run incompatible versions.
    """
    ready = read_ready(directory)
    if (newest_attempt(directory)[1] / "ended.json").exists():
        raise AllocationError(directory.name, "its Slurm job has ended; see 'monarch-hpc status' for how")
    if ready is None:
        if not directory.is_dir():
            raise AllocationError(directory.name, f"its directory {directory} is gone: it has ended")
        raise AllocationError(directory.name, "its agents are not ready yet; 'monarch-hpc status' shows how far it is")
    if not ready.addresses:
        raise AllocationError(directory.name, f"its first host is missing (missing: {', '.join(ready.missing)})")
    there = f"on {ready.hosts.get(0, 'the head')}"
    if ready.protocol != PROTOCOL:
        raise VersionMismatch("the protocol", str(PROTOCOL), f"{ready.protocol} {there}")
    if ready.package != __version__:
        raise VersionMismatch("monarch_hpc", __version__, f"{ready.package} {there}")
    here = platform.python_version()
    if ready.python.split(".")[:2] != here.split(".")[:2]:
        raise VersionMismatch("Python", f"{here} ({sys.executable})", f"{ready.python} {there}")
    return ready


def _object(value: object, path: Path) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _unreadable(path)
    return value


def _list(value: object, path: Path) -> list[object]:
    if not isinstance(value, list):
        raise _unreadable(path)
    return value


def _texts(value: object, path: Path) -> list[str]:
    return [str(item) for item in _list(value, path)]


def _unreadable(path: Path) -> ConfigError:
    return ConfigError("", "", str(path), "is not what this version of monarch-hpc writes")
