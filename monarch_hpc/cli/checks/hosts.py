"""The hosts of an allocation as `doctor NAME` sees them: their own findings, what differs, who reaches whom."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from monarch_hpc.cli.checks.findings import Finding, Severity
from monarch_hpc.cli.checks.local_facts import compare_versions
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError, MonarchError
from monarch_hpc.core.machine.interfaces import choose_interfaces, read_interfaces
from monarch_hpc.core.text.hostlist import compress, expand
from monarch_hpc.slurm import AllocationRecord, Allocations, look
from monarch_hpc.slurm.commands.argv import topology_argv
from monarch_hpc.slurm.commands.cluster import parse_leaves

__all__ = ["ask_hosts", "dial_back", "examine_host"]

# A step for each: the first host, the last, and two between show what differs by rack.
_MAX_ASKED = 4
# slurmctld must create the step, and Python starts from a cold file system.
_ANSWER_S = 60.0
_DIAL_S = 3.0
# Leases and polls last longer; times in logs of several hosts are compared by people.
_SKEW_S = 2.0


def ask_hosts(
    allocations: Allocations, record: AllocationRecord, config: Config, here: Mapping[str, str]
) -> list[Finding]:
    """Run `doctor` on some hosts of a ready allocation, and return what is wrong or different there.

    Args:
        here: findings of this machine: what -> found.

    Raises:
        AllocationError: the allocation is not ready.
    """
    ready = look(record.directory).ready
    if ready is None or record.job_id is None or not record.live:
        raise AllocationError(record.name, "is not ready; 'monarch-hpc status' shows its state")
    names = [host.name for host in ready.hosts]
    places = sorted({round(part * (len(names) - 1) / (_MAX_ASKED - 1)) for part in range(_MAX_ASKED)})
    findings = [Finding("hosts", f"asked {len(places)} of {len(names)}: {', '.join(names[place] for place in places)}")]
    findings += _switches(names, allocations.slurm.probe(topology_argv(), _ANSWER_S))
    with _Listener(config) as listener:
        for place in places:
            before_s = time.time()
            doctor = [config.agent.python, "-P", "-m", "monarch_hpc.cli", "doctor", "--json"]
            # Its exit code reports its findings; srun's must report the step.
            argv = ["sh", "-c", '"$@" || :', "sh", *doctor, "--dial", listener.addresses]
            try:
                host = ready.hosts[place]
                job_id = host.job_id or record.job_id
                answer = json.loads(allocations.slurm.run_on(job_id, host.name, argv, _ANSWER_S, host.component))
            except (MonarchError, ValueError) as error:
                advice = "see 'monarch-hpc logs', and 'srun --overlap' by hand"
                findings.append(Finding(names[place], f"does not answer: {error}", Severity.PROBLEM, advice))
                continue
            findings += examine_host(names[place], answer, here, (before_s, time.time()))
    return findings


def examine_host(
    host: str, answer: Mapping[str, object], here: Mapping[str, str], asked_s: tuple[float, float]
) -> Iterator[Finding]:
    """Yield what is wrong on a host, and what differs from here.

    Args:
        answer: its output of `doctor --json --dial`.
        here: findings of this machine: what -> found.
        asked_s: when it was asked, and when it had answered, by this machine's clock.
    """
    given = answer.get("findings")
    found = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    for one in found:
        if one.get("state") != Severity.OK.value:
            yield Finding(f"{host}: {one['what']}", str(one["found"]), Severity(one["state"]), str(one["advice"]))
    yield from compare_versions(here, {str(one["what"]): str(one["found"]) for one in found}, host)
    clock_s = answer.get("time_s")
    if isinstance(clock_s, float):
        # Its answer was made at some time in between.
        off_s = max(asked_s[0] - clock_s, clock_s - asked_s[1], 0.0)
        if off_s > _SKEW_S:
            advice = "ask your administrator to set the clocks (chrony, ntp): times in logs cannot be compared"
            yield Finding(f"{host}: clock", f"differs by {off_s:.0f} s or more", Severity.WARN, advice)
        else:
            yield Finding(f"{host}: clock", "agrees with this machine's")
    reached = answer.get("reached")
    if reached:
        yield Finding(f"{host}: way back", f"reaches this machine at {reached}")
    else:
        refused = "cannot open a connection to this machine, which therefore dials it, or uses a relay"
        yield Finding(f"{host}: way back", refused)


def _switches(hosts: Sequence[str], topology: str) -> Iterator[Finding]:
    """Yield the leaf switch of each host, where Slurm knows them."""
    mine = set(hosts)
    leaves = {leaf: mine & set(expand(nodes)) for leaf, nodes in parse_leaves(topology).items()}
    found = "; ".join(f"{leaf}: {compress(sorted(inside))}" for leaf, inside in leaves.items() if inside)
    if found:
        yield Finding("leaf switches", found)


def dial_back(addresses: str) -> str:
    """Return the first of these addresses that accepts a connection; empty if none does.

    Args:
        addresses: ``IP:PORT`` with commas between.
    """
    for address in filter(None, addresses.split(",")):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _DIAL_S):
                return address
        except (OSError, ValueError):
            continue
    return ""


class _Listener:
    """Accepts connections of hosts, to show that they arrive; nothing is read from them."""

    def __init__(self, config: Config) -> None:
        chosen = choose_interfaces(read_interfaces(), config.fabric.interfaces.login, local=False, side="login")
        self._sockets: list[socket.socket] = []
        found: Sequence[str] = [*chosen.values()]
        for address in found:
            self._sockets.append(socket.create_server((address, 0)))
        self.addresses = ",".join("{}:{}".format(*one.getsockname()) for one in self._sockets)

    def __enter__(self) -> _Listener:
        for one in self._sockets:
            threading.Thread(target=_accept, args=(one,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            one.shutdown(socket.SHUT_RDWR)  # wakes accept
            one.close()


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return
