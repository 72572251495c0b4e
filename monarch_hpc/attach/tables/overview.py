"""Reads the rows of the tables that processes need not be asked for: those of the head, the directory, and Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from monarch_hpc.allocation.changes import read_changes
from monarch_hpc.allocation.settings import name_of
from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.attach.head.status import HeadStatus, query_status
from monarch_hpc.attach.tables.log_rows import read_log_rows
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.config.load import load
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import SlurmError
from monarch_hpc.telemetry.views.members import actors_of, endpoints_of, failures_of, meshes_of, waits_of
from monarch_hpc.wire.tables.calls import CALLS, ProcCalls
from monarch_hpc.wire.tables.overview import (
    ACTORS,
    CHANNELS,
    ENDPOINTS,
    FAILURES,
    HOSTS,
    LOGS,
    MESHES,
    OF_PROCESSES,
    OVERVIEW,
    RUNS,
    SLURM,
    STATE_CHANGES,
    WAITS,
    ChangeRow,
    ChannelRow,
    HostRow,
    RunRow,
    SlurmNode,
)

__all__ = ["Overview", "read_overview"]


@dataclass(frozen=True, slots=True)
class Overview:
    """Rows by table, as text, and sources that did not answer, in words."""

    rows: Mapping[str, str]
    missing: list[str]


def read_overview(directory: Path, names: Collection[str], timeout_s: float, head: HeadClient | None) -> Overview:
    """Return the rows of those of some tables that are in `OVERVIEW`.

    Args:
        timeout_s: limit on the time of the head, and of each of Slurm's commands.
        head: a channel to its head; None for an allocation that has ended: its changes, failures and output are left.
    """
    wanted = [name for name in OVERVIEW if name in names]
    missing: list[str] = []
    status = None
    if head is not None and {HOSTS.name, RUNS.name, CHANNELS.name} & {*wanted}:
        status = query_status(head, timeout_s)
        if status is None:
            missing.append(f"the head of {name_of(directory)}")
    nodes: list[SlurmNode] = []
    if head is not None and SLURM.name in wanted:
        try:
            nodes = _read_slurm(directory, timeout_s)
        except SlurmError as error:
            missing.append(f"Slurm ({error})")
    processes: list[ProcCalls] = []
    if head is not None and OF_PROCESSES.intersection(wanted):
        answer = query_rows(head, CALLS, timeout_s)
        missing += [f"the head of {name_of(directory)}"] if answer is None else [*answer.missing, *answer.left_out]
        processes = [] if answer is None else answer.rows
    read: dict[str, Callable[[], list[object]]] = {
        ACTORS.name: lambda: [*actors_of(processes)],
        MESHES.name: lambda: [*meshes_of(processes)],
        ENDPOINTS.name: lambda: [*endpoints_of(processes)],
        WAITS.name: lambda: [*waits_of(processes)],
        FAILURES.name: lambda: [*failures_of(processes, _changes(directory), time.time())],
        LOGS.name: lambda: [*read_log_rows(directory)],
        HOSTS.name: lambda: [] if status is None else [*_hosts(status)],
        RUNS.name: lambda: [] if status is None else [*_runs(status)],
        CHANNELS.name: lambda: [] if status is None else [*_channels(status)],
        STATE_CHANGES.name: lambda: [*_changes(directory)],
        SLURM.name: lambda: [*nodes],
    }
    return Overview({name: OVERVIEW[name].render(read[name](), {}) for name in wanted}, missing)


def _hosts(status: HeadStatus) -> list[HostRow]:
    return [
        HostRow(
            host=_text(one, "name"),
            rank=_number(one, "rank"),
            head=one.get("head") is True,
            state=_text(one, "state"),
            problem=_text(one, "problem"),
            drained=_text(one, "drained"),
            cpus=_number(one, "cpus"),
            gpus=len(gpus) if isinstance(gpus := one.get("gpus"), list) else 0,
            memory_bytes=_number(one, "memory_bytes"),
            pid=_number(one, "pid"),
            procs=_number(one, "procs"),
        )
        for one in status["hosts"]
    ]


def _runs(status: HeadStatus) -> list[RunRow]:
    return [
        RunRow(
            run=_text(one, "run"),
            title=_text(one, "title"),
            host=_text(one, "controller_host"),
            pid=_number(one, "pid"),
            state=_text(one, "state"),
            age_s=float(age) if isinstance(age := one.get("age_s"), int | float) else 0.0,
            procs=_number(one, "procs"),
        )
        for one in status["runs"]
    ]


def _channels(status: HeadStatus) -> list[ChannelRow]:
    names = {_number(one, "rank"): _text(one, "name") for one in status["hosts"]}
    rows = [
        ChannelRow("", _text(one, "name"), _text(one, "fabric"), _text(one, "why"), 1)
        for one in status["hosts"]
        if one.get("fabric")
    ]
    for run in status["runs"]:
        links = run.get("links")
        for link in links if isinstance(links, list) else []:
            if isinstance(link, dict):
                host = names.get(_number(link, "host"), str(link.get("host")))
                rows.append(
                    ChannelRow(
                        _text(run, "run"), host, _text(link, "fabric"), _text(link, "why"), _number(link, "procs")
                    )
                )
    return rows


def _changes(directory: Path) -> list[ChangeRow]:
    return [
        ChangeRow(change.time_s, change.what, change.subject, change.kind, change.cause)
        for change in reversed(read_changes(directory))
    ]


def _read_slurm(directory: Path, timeout_s: float) -> list[SlurmNode]:
    from monarch_hpc.slurm import Allocations
    from monarch_hpc.slurm.directory import look

    granted = look(directory).granted
    if granted is None:
        return []
    slurm = Allocations.open(load().config, timeout_s).slurm
    job = slurm.find_job(granted.job_id)
    left_s = -1.0 if job is None or job.end_s is None else max(job.end_s - time.time(), 0.0)
    return [
        SlurmNode(node.name, granted.job_id, node.state, not node.usable, node.reason, round(left_s, 1))
        for node in slurm.node_states(granted.hosts)
    ]


def _text(document: Mapping[str, object], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def _number(document: Mapping[str, object], key: str) -> int:
    value = document.get(key)
    return value if type(value) is int else -1
