"""Processes by identity, so that signals go to the process that was started, never to a later one with the same pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.testing.waiting import wait_until

__all__ = [
    "HostProcess",
    "ProcessIdentity",
    "find_children",
    "find_pids_in",
    "namespace_of_children",
    "read_command",
    "read_uid",
]


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of a process: its pid and its start time, in clock ticks since boot."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process with this pid; None if it does not exist or is a zombie."""
        found = read_stat(pid)
        return None if found is None or found.has_ended else cls(pid, found.start_ticks)

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def kill(self, signal_number: int = signal.SIGKILL) -> bool:
        """Signal this very process; False if it is gone."""
        try:
            # The descriptor pins the process: its pid cannot be reused between check and signal.
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(descriptor, signal_number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def find_children(pid: int) -> list[int]:
    """The children of a process's first thread."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def namespace_of_children(pid: int) -> str | None:
    """The pid namespace of the children of *pid*; None if *pid* is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid_for_children")
    except OSError:
        return None


def find_pids_in(namespaces: Collection[str]) -> dict[str, list[int]]:
    """All processes in each of these pid namespaces except zombies."""
    found: dict[str, list[int]] = {namespace: [] for namespace in namespaces}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            pids = found.get(os.readlink(f"/proc/{entry}/ns/pid"))
            if pids is not None and ProcessIdentity.of(int(entry)):
                pids.append(int(entry))
    return {namespace: sorted(pids) for namespace, pids in found.items()}


def read_command(pid: int) -> list[str]:
    """The command line of a process; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="backslashreplace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rstrip("\0").split("\0") if text else []


def read_uid(pid: int) -> int | None:
    """The effective user id of a process; None if it is gone."""
    # Not the owner of /proc/PID, which is root for a process that may not be traced.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[2])
    return None


class HostProcess(subprocess.Popen[str]):
    """A command that runs on a host of the lab.

    `pid` is nsenter's; `inner_pid` is the command's own, as seen from outside the host. Signals go to the command, and
    its exit status becomes that of this process.
    """

    @property
    def inner_pid(self) -> int:
        """The command's process id, as seen from outside the host.

        Raises:
            ProcessLookupError: the command has ended.
        """
        # nsenter forks once, so its only child is the command.
        children = wait_until(
            f"process {self.pid} to enter the host",
            lambda: find_children(self.pid),
            10.0,
            # Not poll(): in a signal handler that interrupts wait() it never reports the end.
            accept=lambda found: found or ProcessIdentity.of(self.pid) is None,
            interval_s=0.002,
        )
        if not children:
            raise ProcessLookupError(self.pid)
        return children[0]

    def send_signal(self, sig: int) -> None:
        """Signal only the command; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.inner_pid, sig)

    def signal_group(self, sig: int = signal.SIGINT) -> None:
        """Signal the command and its process group, as a terminal does on Ctrl-C."""
        with contextlib.suppress(ProcessLookupError):
            pid = self.inner_pid
            wait_until("the command to lead its own group", lambda: os.getpgid(pid) == pid, 10.0, interval_s=0.002)
            os.killpg(pid, sig)
