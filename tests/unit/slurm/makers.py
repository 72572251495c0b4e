"""Values for tests, with sensible defaults; any field can be changed by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from monarch_hpc.allocation.ready import Ready, make_ready
from monarch_hpc.slurm.commands.jobs import JobDetail, QueueRow
from monarch_hpc.slurm.commands.states import SlurmState
from monarch_hpc.slurm.record import AllocationRecord, OwnerProcess
from monarch_hpc.wire.control.allocation import HostEntry

ALICE = OwnerProcess("login", "boot", 100, 5000)
RECORD = AllocationRecord(
    "0123456789abcdef0123456789abcdef", "dev", Path("/shared/01234567"), "4", ALICE, created_s=1000.0
)


def record(**changes: object) -> AllocationRecord:
    return replace(RECORD, **changes)  # type: ignore[arg-type]


def ready(hosts: Sequence[str], missing: Sequence[str] = ()) -> Ready:
    entries = [
        HostEntry(rank, name, [], 5, "3.11.7", "0.1.0", list(range(8)), ["0", "1"], 1 << 30, {})
        for rank, name in enumerate(hosts)
    ]
    return make_ready(RECORD.allocation, 7, entries, missing)


def row(state: SlurmState = SlurmState.RUNNING, job_id: int = 7, reason: str = "") -> QueueRow:
    end, hosts = ("2026-11-21T14:00:00", "n[1-4]") if state is SlurmState.RUNNING else ("", "")
    return QueueRow(job_id, RECORD.job_name, state, state.value, 4, hosts, end, "30:00", reason)


def detail(state: SlurmState, reason: str = "", exit_code: str = "0:0", restarts: int = 0) -> JobDetail:
    return JobDetail(
        7, RECORD.job_name, state, state.value, reason, exit_code, "n[1-4]", "n1", "", restarts, components=("n[1-4]",)
    )
