"""Faults of the hosts, the network and the Slurm of a lab; each context mends what it has broken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from monarch_hpc.testing.slurmlab.lab import SlurmLab
from monarch_hpc.testing.waiting import wait_until

__all__ = ["LabFaults"]


class LabFaults:
    """Faults of one lab. What a test does not mend, `SlurmLab.reset` does."""

    def __init__(self, lab: SlurmLab) -> None:
        self._lab = lab

    # ---- hosts and links

    @contextlib.contextmanager
    def off(self, *hosts: str) -> Iterator[None]:
        """Cut the power of hosts; they boot when the context ends."""
        for host in hosts:
            self._lab.kill_host(host)
        try:
            yield
        finally:
            for host in hosts:
                self._lab.boot_host(host)

    @contextlib.contextmanager
    def unplugged(self, host: str) -> Iterator[None]:
        """Pull the network cable of a host."""
        self._lab.link_down(host)
        try:
            yield
        finally:
            self._lab.link_up(host)

    @contextlib.contextmanager
    def cut(self, one: str, other: str, *, one_way: bool = False) -> Iterator[None]:
        """Drop all packets between two hosts; with *one_way* only those from *one* to *other*."""
        self._lab.cut(one, other, one_way=one_way)
        try:
            yield
        finally:
            self._lab.join(one, other)

    def flap(self, host: str, num_times: int, period_s: float = 1.0) -> None:
        """Pull the cable of a host *num_times*, each time for half of *period_s*; it is plugged in at the end."""
        for _ in range(num_times):
            with self.unplugged(host):
                time.sleep(period_s / 2)
            time.sleep(period_s / 2)

    # ---- files

    @contextlib.contextmanager
    def full(self, host: str, folder: Path, num_bytes: int = 64 << 10) -> Iterator[None]:
        """Put a file system of *num_bytes* over a folder of one host, which so is full after that much."""
        with self._mounted(host, folder, f"size={num_bytes},mode=0777"):
            yield

    @contextlib.contextmanager
    def read_only(self, host: str, folder: Path) -> Iterator[None]:
        """Put an empty file system that cannot be written over a folder of one host."""
        with self._mounted(host, folder, "ro"):
            yield

    @contextlib.contextmanager
    def _mounted(self, host: str, folder: Path, options: str) -> Iterator[None]:
        self._root("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder), host=host)
        try:
            yield
        finally:
            self._root("umount", "--lazy", str(folder), host=host)

    # ---- Slurm

    @contextlib.contextmanager
    def without_slurmctld(self) -> Iterator[None]:
        """Kill slurmctld once it has saved its jobs; it is started again with these when the context ends."""
        self._await_saved()
        self._lab.kill_slurmctld()
        try:
            yield
        finally:
            self._lab.start_slurmctld()

    def _await_saved(self) -> None:
        """Wait until all jobs are on record, each with a mark: changes are saved every few seconds."""
        jobs, mark = self._lab.run(["squeue", "-h", "-o", "%A"], user="root", check=True).stdout.split(), uuid4().hex
        for job in jobs:
            self._root("scontrol", "update", f"JobId={job}", f"AdminComment={mark}")
        record = self._lab.base / "state/job_state"
        wait_until(
            "the jobs on record",
            lambda: record.read_bytes() if record.exists() else b"",
            accept=lambda saved: saved.count(mark.encode()) >= len(jobs),
        )

    @contextlib.contextmanager
    def without_slurmd(self, host: str) -> Iterator[None]:
        """Kill slurmd on a host; the processes of jobs stay, until it is started again when the context ends."""
        self._lab.kill_slurmd(host)
        try:
            yield
        finally:
            self._lab.start_slurmd(host)

    def mark_down(self, host: str, reason: str = "test") -> None:
        """Let Slurm take a host for broken, at once."""
        self._root("scontrol", "update", f"NodeName={host}", "State=DOWN", f"Reason={reason}")

    def reach_time_limit(self, job_id: str, left_s: int = 5) -> None:
        """Let the time limit of a job come in *left_s* seconds; Slurm looks every half minute."""
        self._root("scontrol", "update", f"JobId={job_id}", f"EndTime=now+{left_s}")

    def requeue(self, job_id: str) -> None:
        """Put a running job back into the queue, as a preemption does."""
        self._root("scontrol", "requeue", job_id)

    def cancel(self, job_or_step: str) -> None:
        """Cancel a job, or one of its steps: ``7.0``."""
        self._root("scancel", job_or_step)

    def _root(self, *command: str, host: str = "login") -> None:
        self._lab.run(command, user="root", host=host, check=True)
