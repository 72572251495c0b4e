"""The daemons on a lab's hosts: munged, slurmctld, slurmd; found by host and name, since PID files go stale."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import PurePath

from monarch_hpc.core.errors import LabError
from monarch_hpc.testing.slurmlab.folder import LabFolder
from monarch_hpc.testing.slurmlab.hosts import HostSet
from monarch_hpc.testing.slurmlab.processes import ProcessIdentity, read_command
from monarch_hpc.testing.slurmlab.slurmconf import LOGIN
from monarch_hpc.testing.waiting import wait_until

__all__ = ["Daemons"]

_ANSWER_TIMEOUT_S = 60.0
_KILL_TIMEOUT_S = 10.0


class Daemons:
    """The daemons of one lab."""

    def __init__(self, folder: LabFolder, machines: HostSet) -> None:
        self._folder = folder
        self._machines = machines

    def start_munged(self) -> None:
        """Start the only munged: its socket works across namespaces, and on the login host it has the right origin."""
        base = self._folder.path
        # Slurm takes user ids from munge. --force: munged refuses folders below /tmp.
        argv = [
            "munged",
            "--force",
            "--num-threads=4",
            f"--key-file={base}/secret/munge.key",
            "--socket=/run/munge/munge.socket.2",
            "--pid-file=/run/munged.pid",
            f"--log-file={self._folder.log}/munged.log",
            f"--seed-file={base}/secret/munge.seed",
        ]
        self._machines.run_plain(LOGIN, argv)

    def start(self, daemon: str, host: str) -> None:
        """Start slurmctld or slurmd.

        Raises:
            LabError: it is already running, or did not start; then the message has the end of its log.
        """
        if self.find(daemon, host):
            raise LabError(self._folder.path.name, f"{daemon} is already running on {host}")
        try:
            # The daemon forks into the background once it has read its configuration.
            self._machines.run_plain(host, [daemon])
        except LabError as error:
            raise LabError(self._folder.path.name, f"{error.problem}\n{self._log_tail(daemon, host)}") from error

    def start_slurmctld(self) -> None:
        """Start slurmctld and wait until it answers."""
        self.start("slurmctld", LOGIN)
        wait_until("slurmctld to answer", self._slurmctld_answers, _ANSWER_TIMEOUT_S, interval_s=0.05)

    def kill(self, daemon: str, host: str) -> None:
        """Kill a daemon; processes that it started stay."""
        victims = self.find(daemon, host)
        if not victims:
            raise LabError(self._folder.path.name, f"no {daemon} runs on {host}")
        for victim in victims:
            victim.kill()
        wait_until(f"{daemon} on {host} to end", lambda: not any(one.is_alive() for one in victims), _KILL_TIMEOUT_S)

    def find(self, daemon: str, host: str) -> list[ProcessIdentity]:
        """The processes of a daemon on a host."""
        return self.find_on([host], daemon)[host]

    def find_on(self, hosts: Sequence[str], daemon: str) -> dict[str, list[ProcessIdentity]]:
        """The processes of a daemon on each of these hosts."""

        def identities(pids: list[int]) -> list[ProcessIdentity]:
            of_daemon = (pid for pid in pids if PurePath(*read_command(pid)[:1]).name == daemon)
            return [identity for pid in of_daemon if (identity := ProcessIdentity.of(pid))]

        return {host: identities(pids) for host, pids in self._machines.find_pids(*hosts).items()}

    def node_states(self) -> dict[str, str]:
        """Slurm's state of each compute host."""
        text = self._machines.run_plain(LOGIN, ["sinfo", "-h", "-N", "-p", "debug", "-O", "NodeHost:64,StateLong:64"])
        states = {}
        for line in text.splitlines():
            host, state = line.split()
            states[host] = state
        return states

    def _slurmctld_answers(self) -> bool:
        if not self.find("slurmctld", LOGIN):
            raise LabError(self._folder.path.name, f"slurmctld ended:\n{self._log_tail('slurmctld', LOGIN)}")
        with contextlib.suppress(LabError):
            return " UP" in self._machines.run_plain(LOGIN, ["scontrol", "ping"])
        return False

    def _log_tail(self, daemon: str, host: str) -> str:
        file = self._folder.log / (f"{daemon}.log" if host == LOGIN else f"{daemon}.{host}.log")
        return file.read_text(errors="replace")[-2000:] if file.exists() else "(it wrote nothing)"
