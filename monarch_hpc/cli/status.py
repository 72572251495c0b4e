"""`monarch-hpc status`: shows allocations, their state and their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal

import click

from monarch_hpc.allocation.settings import read_config
from monarch_hpc.cli.allocations.joined import joined_jobs
from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import TextTable, current_output, output_options
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import MonarchError, SlurmError, TransportError
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import (
    AllocationRecord,
    Allocations,
    Census,
    Phase,
    QueueRow,
    Seen,
    SlurmState,
    look,
    reason_in_words,
)
from monarch_hpc.supervision.spares import hosts_in_use

if TYPE_CHECKING:
    from monarch_hpc.attach.head.status import HeadStatus

__all__ = ["command"]

# A dead slurmctld must not delay the table, whose other contents are read from files.
_PATIENCE_S = 8.0

# A head that has not answered by then is shown as such, so that the table does not hang.
# Long enough for the relay: it is tried after a second, and srun takes another.
_ASK_S = 4.0

# An allocation that nothing uses is shown as such in its last minutes; before that the note would be noise.
_IDLE_SHOWN_S = 120.0

# A suspended job stops all procs at once, and a line of a table is short.
_MAX_NAMED = 3

# States of a host without an agent.
_GONE = ("lost", "dead")


@dataclass(frozen=True, slots=True)
class _View:
    """Everything known about one allocation."""

    record: AllocationRecord
    row: QueueRow | None
    seen: Seen
    head: HeadStatus | None
    problem: str
    jobs: Sequence[Mapping[str, object]]


@click.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option("--calls", is_flag=True, help="Show running calls, their callers, and which actors wait for which.")
@click.option("--endpoints", is_flag=True, help="Show number and duration of calls by endpoint, and time in the queue.")
@click.option("--procs", is_flag=True, help="Show the processes of runs, with their memory.")
@click.option("--memory", is_flag=True, help="Show what actors lend by RDMABuffer, and the last transfers.")
@click.option("--clocks", is_flag=True, help="Show how far the clocks of hosts differ, and how sure that is.")
@click.option("--changes", is_flag=True, help="Show what has become of hosts, runs and procs, when, and why.")
@click.option("--run", metavar="RUN", help="With --calls, --endpoints, --procs or --memory: only this run.")
@output_options
def command(
    name: str | None,
    calls: bool,
    endpoints: bool,
    procs: bool,
    memory: bool,
    clocks: bool,
    changes: bool,
    run: str | None,
) -> int:
    """Show allocations, their state and their runs."""
    config = load_for_command({}).config
    output = current_output()
    if calls + endpoints + procs + memory + clocks + changes > 1:
        raise click.UsageError("--calls, --endpoints, --procs, --memory, --clocks and --changes exclude each other")
    if run is not None and not (calls or endpoints or procs or memory):
        raise click.UsageError("--run goes with --calls, --endpoints, --procs or --memory")
    if calls or endpoints or procs or memory or clocks:
        from monarch_hpc.cli.tables.question import Question

        question = Question(name, run, config, output)
        if calls:
            from monarch_hpc.cli.tables.calls import show_calls

            return show_calls(question)
        if endpoints:
            from monarch_hpc.cli.tables.endpoints import show_endpoints

            return show_endpoints(question)
        if memory:
            from monarch_hpc.cli.tables.memory import show_memory

            return show_memory(question)
        if clocks:
            from monarch_hpc.cli.tables.clocks import show_clocks

            return show_clocks(question)
        from monarch_hpc.cli.tables.procs import show_procs

        return show_procs(question)
    allocations = Allocations.open(config, _PATIENCE_S)
    if changes:
        from monarch_hpc.cli.tables.changes import show_changes

        record = allocations.find(name)
        return show_changes(record.name, record.directory, output)
    census = allocations.reconcile(config.slurm.poll_min_s)
    changes_made = list(census.changes)
    for change in changes_made:
        output.progress(change)
    if census.problem is not None:
        output.warn(f"{census.problem}\nthe following is from files only")
    if name is None:
        records = [record for record in census.records if record.live]
    else:
        records = [allocations.find(name)]
    views = [_view(allocations, record, census) for record in records]
    views = [_without_ghost(allocations, view, changes_made) for view in views]
    rows = []
    for v in views:
        state = _state(v) + _link(v) + _restarts(v) + _idle(v)
        rows.append([v.record.name, str(v.record.job_id or "-"), state, _hosts(v) + _notes(v), _left(v), _runs(v)])
        for job in v.jobs:
            rows.append(
                ["  +", str(job["job_id"] or "-"), *(str(job[key] or "-") for key in ("state", "hosts", "left")), "-"]
            )
    document = {
        "slurm": None if census.problem is None else str(census.problem),
        "changes": changes_made,
        "allocations": [_document(view) for view in views],
    }
    text: TextTable | str = TextTable(["ALLOC", "JOB", "STATE", "HOSTS", "LEFT", "RUNS"], rows)
    if not views:
        text = "there is no allocation; take one: monarch-hpc alloc NAME -N HOSTS -t MINUTES"
    output.show(document, text, [view.record.name for view in views])
    return 0


def _view(allocations: Allocations, record: AllocationRecord, census: Census) -> _View:
    row = census.rows.get(record.job_name)
    seen = look(record.directory)
    head: HeadStatus | None = None
    problem = ""
    if record.live and allocations.requeued(record, row):
        # The files in its directory are of an attempt that has ended.
        seen = Seen(granted=None, attempt=seen.attempt)
    elif record.live and _suspended(row):
        pass  # none of its processes can answer
    elif record.live and seen.ready is not None and seen.exit_status is None:
        from monarch_hpc.attach.head.status import query_status

        try:
            head = query_status(record.directory, _ASK_S)
            problem = "" if head is not None else "no head"
        except (MonarchError, OSError) as error:
            problem = f"head does not answer: {error}" if isinstance(error, TransportError) else str(error)
    jobs = joined_jobs(record, census, head["hosts"] if head is not None else ())
    return _View(record, row, seen, head, problem, jobs)


def _without_ghost(allocations: Allocations, view: _View, changes: list[str]) -> _View:
    """Cancel the job of an allocation whose hosts say that they have no agent; add that to *changes*."""
    if not view.problem or view.row is None or view.row.state.phase is not Phase.RUNNING or _suspended(view.row):
        return view
    try:
        record, change = allocations.end_ghost(view.record)
    except SlurmError:
        return view
    if change:
        current_output().progress(change)
        changes.append(change)
    return replace(view, record=record)


def _state(view: _View) -> str:
    """Describe the state of an allocation in a few words."""
    record, row, seen = view.record, view.row, view.seen
    if record.ended is not None:
        return f"ended: {record.ended.state}: {record.ended.reason}"
    if record.release_why:
        return "releasing"
    if record.job_id is None:
        return f"being submitted on {record.owner.host}"
    if seen.exit_status is not None or (row is not None and row.state.phase is Phase.ENDING):
        return "ending"
    if _suspended(row):
        return "suspended by Slurm: all its processes are stopped until 'scontrol resume'"
    if seen.ready is not None:
        missing = f", {len(seen.ready.missing)} missing" if seen.ready.missing else ""
        return (view.problem or "ready") + missing + _parted(record)
    if seen.granted is not None:
        return f"agents {len(seen.reported)}/{len(seen.granted.hosts)}"
    if row is None:
        return "submitted"
    if seen.attempt and row.state.phase is not Phase.RUNNING:
        return f"queued again after a requeue: {reason_in_words(row.reason)}" if row.reason else "queued again"
    if row.state.phase is Phase.QUEUED:
        return f"queued: {reason_in_words(row.reason)}" if row.reason else "queued"
    return "starting" if row.state.phase in (Phase.STARTING, Phase.RUNNING) else row.slurm_state.lower()


def _parted(record: AllocationRecord) -> str:
    """Note that the first job is over, and the allocation goes on with further ones."""
    parted = record.parted
    return "" if parted is None else f" (job {record.job_id} has ended: {parted.state})"


def _link(view: _View) -> str:
    """Note that the hosts are reached over the relay, which is slower."""
    return " over the relay" if view.head is not None and view.head["link"] == "relay" else ""


def _suspended(row: QueueRow | None) -> bool:
    return row is not None and row.state in (SlurmState.SUSPENDED, SlurmState.STOPPED)


def _restarts(view: _View) -> str:
    """Note that Slurm has requeued the job, which ended all that ran on its hosts."""
    restarts = view.seen.granted.restarts if view.seen.granted is not None else 0
    return f" (requeued {restarts}×)" if restarts and view.record.live else ""


def _idle(view: _View) -> str:
    """Note that nothing uses the allocation, and that its head is about to release it."""
    left_s = view.head["idle_left_s"] if view.head is not None else -1.0
    return f" (unused: released in {format_duration(left_s)})" if 0 <= left_s <= _IDLE_SHOWN_S else ""


def _spares(view: _View) -> list[str]:
    """Names of the hosts that `hosts()` leaves out."""
    if view.seen.ready is None:
        return []
    try:
        num_spares = read_config(view.record.directory).heal.spare_hosts
    except (MonarchError, OSError):
        return []  # its directory is being removed, or another version wrote it
    if not num_spares:
        return []
    names = [str(host["name"]) for host in _items(view, "hosts") if host["state"] not in _GONE]  # by rank
    total = len(view.seen.ready.hosts) + len(view.seen.ready.missing)
    return names[len(hosts_in_use(range(len(names)), total, num_spares)) :]


def _lost(view: _View) -> dict[str, str]:
    """The lost hosts: why, and what is done for their return."""
    return {
        str(host["name"]): "; ".join(str(host[key]) for key in ("problem", "returning") if host.get(key))
        for host in _items(view, "hosts")
        if host["state"] in _GONE
    }


def _notes(view: _View) -> str:
    """Name spare and lost hosts, for a ticket needs the names; and the meshes that are kept for later runs."""
    kept = [str(mesh["name"]) for mesh in _items(view, "kept")]
    known = (("spare", _spares(view)), ("lost", list(_lost(view))), ("keeps", kept))
    told = [f"{what} {_named(names)}" for what, names in known if names]
    return f" ({', '.join(told)})" if told else ""


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return " ".join(names[:_MAX_NAMED]) + more


def _hosts(view: _View) -> str:
    if view.seen.ready is not None:
        total = len(view.seen.ready.hosts) + len(view.seen.ready.missing)
        there = len(view.seen.ready.hosts)
        if view.head is not None:
            there = sum(host["state"] not in _GONE for host in _items(view, "hosts"))
        return f"{there}/{total}"
    return f"0/{view.row.num_hosts if view.row is not None else view.record.num_hosts}"


def _left(view: _View) -> str:
    if view.row is None or not view.record.live or view.row.state.phase is Phase.QUEUED:
        return "-"
    return view.row.left or "-"


def _runs(view: _View) -> str:
    runs = _items(view, "runs")
    return (
        ", ".join(f"{run.get('run')} {run.get('state')} {_age(run.get('age_s'))}{_stopped(run)}" for run in runs) or "-"
    )


def _stopped(run: Mapping[str, object]) -> str:
    """Note that procs were stopped by a signal: the rest of the run waits for them."""
    suspect = run.get("suspect")
    if not isinstance(suspect, list) or not suspect:
        return ""
    where = ", ".join(f"{proc['rank']} on {proc['host']}" for proc in suspect[:_MAX_NAMED])
    more = f" and {len(suspect) - _MAX_NAMED} more" if len(suspect) > _MAX_NAMED else ""
    return f" (stopped by SIGSTOP: proc {where}{more})"


def _age(age_s: object) -> str:
    return format_duration(age_s) if isinstance(age_s, int | float) else ""


def _items(view: _View, key: Literal["hosts", "kept", "runs"]) -> Sequence[Mapping[str, object]]:
    return view.head[key] if view.head is not None else []


def _document(view: _View) -> dict[str, object]:
    record = view.record
    ended = record.ended
    return {
        "name": record.name,
        "id": record.allocation,
        "job_id": record.job_id,
        "job_name": record.job_name,
        "directory": str(record.directory),
        "state": _state(view),
        "live": record.live,
        "slurm_state": view.row.slurm_state if view.row is not None else None,
        "reason": view.row.reason if view.row is not None else "",
        "restarts": view.seen.granted.restarts if view.seen.granted is not None else 0,
        "nodelist": view.seen.granted.nodelist if view.seen.granted is not None else "",
        "left": view.row.left if view.row is not None else "",
        "end": view.row.end if view.row is not None else "",
        "missing": list(view.seen.ready.missing) if view.seen.ready is not None else [],
        "hosts": [dict(host) for host in _items(view, "hosts")],
        "jobs": [dict(job) for job in view.jobs],
        "spares": _spares(view),
        "lost": _lost(view),
        "link": view.head["link"] if view.head is not None else "",
        "link_why": view.head["link_why"] if view.head is not None else "",
        "runs": [dict(run) for run in _items(view, "runs")],
        "kept": [dict(mesh) for mesh in _items(view, "kept")],
        "idle_left_s": view.head["idle_left_s"] if view.head is not None and view.head["idle_left_s"] >= 0 else None,
        "parted": None if record.parted is None else asdict(record.parted),
        "ended": None if ended is None else asdict(ended),
    }
