"""`monarch-hpc node`: the hosts of an allocation, and the user's list of bad ones."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

from monarch_hpc.allocation.settings import read_config
from monarch_hpc.cli.allocations.names import HOST, allocation_option
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import Console, TextTable, current_output, output_options
from monarch_hpc.config import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, SlurmError
from monarch_hpc.core.text.hostlist import expand
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import AllocationRecord, Allocations, Exclusion, Exclusions, look
from monarch_hpc.slurm.commands.cluster import NodeState

if TYPE_CHECKING:
    from monarch_hpc.allocation.ready import ReadyHost
    from monarch_hpc.attach.head.status import HeadStatus

__all__ = ["command"]

_ASK_S = 4.0
_TELL_S = 30.0
"""Time for the head's answer to a drain request: without an answer, the host stays in use there."""
_CHECK_S = 60.0
"""Time that the examination of one host may take: slurmctld creates a step, and a wedged GPU's tool is waited for."""

_MAX_STEPS = 8
"""Steps that examine hosts at the same time; slurmctld has other users."""

_CLOCK_S = 2.0
"""Clocks that differ by more make files of the future, which build tools and caches take for unchanged."""

_EXIT_BAD = 1


@dataclass(frozen=True, slots=True)
class _Host:
    """One host, of the allocation or of the list of bad ones; *seen* is what the head says of it."""

    name: str
    seen: Mapping[str, object] | None
    excluded: Exclusion | None

    @property
    def state(self) -> str:
        if self.seen is None:
            return "-"
        return "drained" if self.seen.get("drained") else str(self.seen.get("state"))

    @property
    def note(self) -> str:
        found = [] if self.seen is None else [str(self.seen.get("drained") or self.seen.get("problem") or "")]
        if self.excluded is not None:
            age = format_duration(max(0.0, time.time() - self.excluded.at_s))
            found.append(f"excluded {age} ago: {self.excluded.reason or 'no reason given'}")
        return "; ".join(filter(None, found))


@click.group(name="node")
def command() -> None:
    """Show, drain and check hosts."""


@command.command(name="list")
@allocation_option
@output_options
def list_hosts(name: str | None) -> None:
    """List the hosts of an allocation, and those that new allocations exclude."""
    _show(_hosts(load_for_command({}).config, name), current_output())


@command.command()
@click.argument("host", type=HOST)
@allocation_option
@output_options
def show(host: str, name: str | None) -> None:
    """Show what is known of one host: by its head, by Slurm, and on the list of bad ones."""
    config = load_for_command({}).config
    found = [one for one in _hosts(config, name) if one.name == host]
    states = Allocations.open(config).slurm.node_states([host])
    one = found[0] if found else _Host(host, None, None)
    slurm = states[0] if states else NodeState(host, "unknown", "")
    document = {**_document(one), "slurm_state": slurm.state, "slurm_reason": slurm.reason}
    reason = f" ({slurm.reason})" if slurm.reason else ""
    seen = {} if one.seen is None else one.seen
    lines = [
        f"{host}: {one.state}" + (f", {one.note}" if one.note else ""),
        f"Slurm: {slurm.state}{reason}",
        *(f"{key}: {seen[key]}" for key in ("rank", "cpus", "gpus", "procs", "addresses") if seen.get(key)),
    ]
    current_output().show(document, "\n".join(lines), [host])


@command.command()
@click.argument("hosts", type=HOST)
@click.option(
    "--reason", default="", metavar="TEXT", help="Why; shown with the list, and when alloc excludes the host."
)
@output_options
def drain(hosts: str, reason: str) -> None:
    """Take hosts out of use, in all your allocations and for new ones.

    Procs that run there go on; no new ones are started. HOSTS is a name, or a list such as n[2-4,7]. New allocations
    exclude the hosts until 'node undrain'; 'node check' examines them.
    """
    config = load_for_command({}).config
    names = expand(hosts)
    for host in names:
        Exclusions(config.paths.state).add(host, reason, time.time())
    told = _tell_heads(config, names, reason or "drained by its user")
    text = "\n".join(f"{host}: excluded from new allocations{_where(told[host])}" for host in names)
    current_output().show({"drained": names, "allocations": told}, text, names)


@command.command()
@click.argument("hosts", type=HOST)
@output_options
def undrain(hosts: str) -> None:
    """Use hosts again: in all your allocations, and in new ones."""
    config = load_for_command({}).config
    names = expand(hosts)
    removed = [host for host in names if Exclusions(config.paths.state).remove(host)]
    told = _tell_heads(config, names, "")
    strange = [host for host in names if host not in removed and not told[host]]
    if strange:
        raise AllocationError("any", f"{', '.join(strange)} is neither drained nor in one of your allocations")
    text = "\n".join(f"{host}: may be used again{_where(told[host])}" for host in names)
    current_output().show({"undrained": names, "allocations": told}, text, names)


@command.command()
@click.argument("hosts", required=False, type=HOST)
@allocation_option
@output_options
def check(hosts: str | None, name: str | None) -> int:
    """Examine hosts of an allocation, drained ones too: disks, memory, GPUs, clock, and Slurm's own view.

    One step for each host, which takes nothing from your programs. The exit code is 1 if anything is wrong.
    """
    config = load_for_command({}).config
    allocations = Allocations.open(config)
    record = _live(allocations, name)
    seen = look(record.directory)
    places = {host.name: host for host in seen.ready.hosts} if seen.ready is not None else {}
    granted = seen.granted.hosts if seen.granted is not None else ()
    known = list(dict.fromkeys([*granted, *places]))
    names = known if hosts is None else expand(hosts)
    strange = [host for host in names if host not in known]
    if strange or not names:
        raise AllocationError(record.name, f"has no host {', '.join(strange) or 'yet'}")
    try:
        states = {state.name: state for state in allocations.slurm.node_states(names)}
    except SlurmError as error:
        states = {}
        current_output().warn(str(error))
    with ThreadPoolExecutor(_MAX_STEPS) as threads:
        found = threads.map(lambda host: _examine(allocations, record, host, places), names)
        findings = dict(zip(names, found, strict=True))
    for host in names:
        state = states.get(host)
        unusable = state is not None and not state.usable
        findings[host]["slurm"] = f"{state.state} {state.reason}".strip() if state is not None and unusable else ""
    problems = {host: {what: text for what, text in found.items() if text} for host, found in findings.items()}
    rows = [[host, *("; ".join(f"{what}: {text}" for what, text in problems[host].items()) or "ok",)] for host in names]
    document = {"hosts": [{"host": host, "problems": problems[host]} for host in names]}
    bad = [host for host in names if problems[host]]
    current_output().show(document, TextTable(["HOST", "FOUND"], rows), bad)
    return _EXIT_BAD if bad else 0


def _examine(
    allocations: Allocations, record: AllocationRecord, host: str, places: Mapping[str, ReadyHost]
) -> dict[str, str]:
    place = places.get(host)
    job_id, component = (place.job_id, place.component) if place is not None else (0, -1)
    job_id = job_id or record.job_id or 0
    python = read_config(record.directory).agent.python
    order = (python, "-P", "-m", "monarch_hpc.agent.resources.health", str(record.directory))
    began_s = time.time()
    try:
        printed = allocations.slurm.run_on(job_id, host, order, _CHECK_S, component)
        answer = json.loads(printed.splitlines()[-1])
        findings = {str(what): str(text) for what, text in answer["findings"].items()}
        clock_s = float(answer["clock_s"])
    except SlurmError as error:
        return {"step": str(error).splitlines()[0]}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return {"step": "its answer cannot be read; is the same monarch_hpc installed there?"}
    behind_s, ahead_s = began_s - clock_s, clock_s - time.time()
    off_s = max(behind_s, ahead_s)
    findings["clock"] = f"its clock is {off_s:.0f} s off" if off_s > _CLOCK_S else ""
    return findings


def _live(allocations: Allocations, name: str | None) -> AllocationRecord:
    record = allocations.find(name)
    if record.ended is not None or record.job_id is None:
        raise AllocationError(record.name, "has no hosts; see 'monarch-hpc status'")
    return record


def _hosts(config: Config, name: str | None) -> list[_Host]:
    """The hosts of the allocation, if there is one, and then the bad ones outside it."""
    excluded = {one.host: one for one in Exclusions(config.paths.state).all()}
    allocations = Allocations.open(config)
    found = []
    if name is not None or any(record.live for record in allocations.registry.records()):
        from monarch_hpc.attach.head.status import query_status

        record = _live(allocations, name)
        head = query_status(record.directory, _ASK_S)
        if head is None:
            raise AllocationError(record.name, f"its head does not answer; see 'monarch-hpc status {record.name}'")
        found = [_Host(str(host["name"]), host, excluded.pop(str(host["name"]), None)) for host in head["hosts"]]
    return [*found, *(_Host(host, None, one) for host, one in excluded.items())]


def _tell_heads(config: Config, hosts: Sequence[str], reason: str) -> dict[str, list[str]]:
    """Tell the heads of all live allocations that have one of the hosts; return who was told, by host."""
    from monarch_hpc.attach.head.orders import drain_host

    told: dict[str, list[str]] = {host: [] for host in hosts}
    for record in Allocations.open(config).registry.records():
        seen = look(record.directory) if record.live else None
        ready = seen.ready if seen is not None and seen.exit_status is None else None
        for host in ready.names.values() if ready is not None else ():
            if host in told:
                answer: HeadStatus | None = drain_host(record.directory, host, reason, _TELL_S)
                if answer is None:
                    current_output().warn(f"{record.name}: its head does not answer; {host} stays as it was there")
                else:
                    told[host].append(record.name)
    return told


def _where(names: Sequence[str]) -> str:
    return f", and told to {', '.join(names)}" if names else ""


def _show(hosts: Sequence[_Host], output: Console) -> None:
    rows = [
        [
            *(host.name, str(host.seen.get("rank", "-")) if host.seen else "-", host.state),
            *(str(host.seen.get("procs", "-")) if host.seen else "-", host.note),
        ]
        for host in hosts
    ]
    table: TextTable | str = TextTable(["HOST", "RANK", "STATE", "PROCS", "NOTE"], rows)
    output.show({"hosts": [_document(host) for host in hosts]}, table if rows else "no hosts", [h.name for h in hosts])


def _document(host: _Host) -> dict[str, object]:
    excluded = None if host.excluded is None else {"reason": host.excluded.reason, "at_s": host.excluded.at_s}
    return {"host": host.name, "state": host.state, "seen": host.seen, "excluded": excluded}
