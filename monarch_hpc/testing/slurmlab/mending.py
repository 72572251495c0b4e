"""Undoes what tests did to a lab whose hosts all have power."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial

from monarch_hpc.core.errors import LabError
from monarch_hpc.testing.slurmlab.daemons import Daemons
from monarch_hpc.testing.slurmlab.folder import Settings
from monarch_hpc.testing.slurmlab.hosts import HostSet
from monarch_hpc.testing.slurmlab.slurmconf import LOGIN
from monarch_hpc.testing.waiting import wait_until

__all__ = ["mend"]


def mend(machines: HostSet, daemons: Daemons, settings: Settings, timeout_s: float) -> None:
    """Plug all cables in, start what is missing of Slurm, end all jobs and users' processes; wait for idle hosts.

    Args:
        timeout_s: longest wait for idle hosts.

    Raises:
        TimeoutError: with the state of each host.
    """
    cluster = settings.cluster
    others = [host for host in cluster.machines if host != LOGIN]
    machines.set_links(others, "up")
    for host in machines.with_cut_neighbours(others):
        machines.set_neighbour(host, "0.0.0.0/0", "joined")
    if not daemons.find("slurmctld", LOGIN):
        daemons.start_slurmctld()
    for host, found in daemons.find_on(cluster.hosts, "slurmd").items():
        if not found:
            daemons.start("slurmd", host)
    # A step that cannot tell its srun how its tasks ended tries again for seconds.
    machines.kill(cluster.machines, settings.uids.values(), but="srun")
    wanted = dict.fromkeys(cluster.hosts, "idle")
    settle = partial(_settle, machines, daemons, settings.uids)
    wait_until("idle hosts", settle, timeout_s, accept=lambda states: states == wanted, interval_s=0.1)
    machines.kill(cluster.machines, settings.uids.values())


def _settle(machines: HostSet, daemons: Daemons, users: Iterable[str]) -> dict[str, str]:
    # Repeated: a job may be queued, or a host marked down, only after slurmctld is back.
    machines.run_plain(LOGIN, ["sh", "-ec", "\n".join(f"scancel --user={user}" for user in users)])
    states = daemons.node_states()
    for host, state in states.items():
        if state.startswith(("down", "drain", "fail")):
            # Refused while the host does not answer; later it comes back by itself.
            with contextlib.suppress(LabError):
                machines.run_plain(LOGIN, ["scontrol", "update", f"NodeName={host}", "State=RESUME"])
    return states
