"""`monarch-hpc alloc`: requests hosts from Slurm, and waits until their agents are ready."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType

import click

from monarch_hpc.cli.allocations.groups import GROUP_OPTION, GroupedCommand, plan_groups
from monarch_hpc.cli.job_options import exclude_hosts, explained_refusal, queue_options, show_notes
from monarch_hpc.cli.option_values import num_hosts
from monarch_hpc.cli.output import Console, current_output, output_options
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import (
    AllocationRecord,
    Allocations,
    Group,
    Lifecycle,
    Request,
    Stage,
    agents_missing,
    check_name,
    limits_in_words,
    plan_group_flags,
    plan_job,
    reason_in_words,
    render_salloc,
    render_script,
)

__all__ = ["command"]

# Thousands of agents may report within seconds; a line for each would hide all else.
_COUNT_EVERY_S = 1.0


@click.command(cls=GroupedCommand)
@click.argument("name", default="default")
@click.option("-N", "--nodes", metavar="N", callback=num_hosts, help="Number of hosts, as for sbatch: 4, or 2-4.")
@queue_options
@click.option("-w", "--nodelist", metavar="HOSTS", help="Hosts that must be included.")
@click.option("-x", "--exclude", metavar="HOSTS", help="Hosts that must not be included.")
@click.option("--gpus-per-node", metavar="N", help="GPUs on each host: 4, or a100:4.")
@GROUP_OPTION
@click.option("--slurm", "options", multiple=True, metavar='"--OPTION=VALUE"', help="Any other option of sbatch.")
@click.option("--bg", is_flag=True, help="Return at once; 'monarch-hpc status' shows when the allocation is ready.")
@click.option("--min-nodes", type=click.IntRange(1), metavar="N", help="Begin with N hosts if others fail to start.")
@click.option("--spare", type=click.IntRange(1), metavar="N", help="Take N hosts more, for the loss of others.")
@click.option("--grow", metavar="NAME", help="Take the hosts for this living allocation, as one more job.")
@click.option("--from", "source", metavar="OTHER", help="With --grow: take those of the unused allocation OTHER.")
@click.option("--test-only", is_flag=True, help="Ask Slurm whether and when it would begin, and stop.")
@click.option("--estimate", is_flag=True, help="Compare starts of this and of smaller and shorter requests, and stop.")
@click.option("--salloc", is_flag=True, help="Hold the hosts by salloc, for queues that take no batch job.")
@click.option("--dry-run", is_flag=True, help="Print the batch script and stop.")
@output_options
def command(
    config: Config,
    name: str,
    nodes: str | None,
    nodelist: str | None,
    exclude: str | None,
    gpus_per_node: str | None,
    group: str | None,
    groups: tuple[Group, ...],
    options: tuple[str, ...],
    bg: bool,
    min_nodes: int | None,
    spare: int | None,
    grow: str | None,
    source: str | None,
    test_only: bool,
    estimate: bool,
    salloc: bool,
    dry_run: bool,
) -> int:
    """Take hosts from Slurm and hold them.

    Returns when the agents on all hosts are ready. NAME is a name for the allocation ('default' if left out). Ctrl-C
    during the wait releases the hosts.

    Hosts of different kinds are groups, divided by ' : ', as in 'alloc -N 1 --group cpu : -N 2 --gpus-per-node 4
    --group gpu'. Programs ask for one by its name: hosts(group="gpu"). Time, partition, QOS, account, constraint and
    reservation hold for all, unless a group has its own; the time is the same for all.

    With --grow NAME the hosts join the allocation of that name. Their job has a time limit of its own, at which they
    are lost to it; 'release NAME' gives all of them back. With --from OTHER they are those of the allocation OTHER,
    which nothing may use: its job joins NAME, and OTHER is gone.
    """
    given = {"nodes": nodes, "nodelist": nodelist, "exclude": exclude}
    if grow is not None:
        others = {"--group": group or groups, "--min-nodes": min_nodes, "--spare": spare, "--salloc": salloc}
        others |= {"--test-only": test_only, "--estimate": estimate, "NAME": name != "default"}
        if wrong := [flag for flag, value in others.items() if value]:
            raise click.UsageError(f"--grow does not go with {wrong[0]}")
        from monarch_hpc.cli.allocations.grow import show_growth

        chosen = tuple(f"--{flag}={value}" for flag, value in given.items() if flag != "nodes" and value is not None)
        with _Signals() as signals:
            if source is not None:
                from monarch_hpc.cli.allocations.move import show_move

                if nodes or gpus_per_node or chosen or options:
                    raise click.UsageError("--from takes all hosts of that allocation, as they are: no other options")
                return show_move(config, grow, source, lambda: signals.received, bg=bg)
            return show_growth(
                *(config, grow, nodes, gpus_per_node, (*chosen, *options), lambda: signals.received),
                bg=bg,
                dry_run=dry_run,
            )
    if source is not None:
        raise click.UsageError("--from goes with --grow NAME")
    if salloc:
        config = replace(config, slurm=replace(config.slurm, allocate_by="salloc"))
    # Options of the command line come last, so that they override the profile's.
    if spare:
        nodes, config = _with_spares(config, nodes, spare, grouped=bool(group or groups))
    given["nodes"] = nodes
    allocation = new_allocation_id()
    chosen = (*(f"--{flag}={value}" for flag, value in given.items() if value is not None), *options)
    request = Request(
        allocation=allocation,
        name=name,
        directory=config.paths.shared / allocation[:8],
        num_hosts=nodes or "1",
        gpus_per_node=gpus_per_node,
        options=chosen,
        groups=plan_groups(Group(group or "", nodes or "1", gpus_per_node, chosen), groups),
    )
    check_name(name)
    if estimate and request.groups:
        raise click.UsageError("--estimate compares sizes of one group; --test-only asks about several")
    output = current_output()
    request = _exclude(config, request, output)
    if dry_run:
        for flags in plan_group_flags(config, request):
            show_notes(plan_job(config, flags, None), output)
        script = render_script(config, request)
        document = {"script": script}
        if config.slurm.allocate_by == "salloc":
            document["salloc"] = holder = render_salloc(config, request)
            script = f"{holder}\n# ---- job.sh, which it starts ----\n{script}"
        output.show(document, script.removesuffix("\n"), script.splitlines())
        return 0
    if test_only or estimate:
        from monarch_hpc.cli.allocations.estimate import show_estimates, show_planned_start

        (show_estimates if estimate else show_planned_start)(config, request, output)
        return 0
    with _Signals() as signals:
        allocations = Allocations.open(config)
        # Where the name is taken, its job may have ended since squeue was asked.
        taken = any(record.live and record.name == name for record in allocations.registry.records())
        for change in allocations.reconcile(0.0 if taken else config.slurm.poll_min_s).changes:
            output.progress(change)
        if signals.received is not None:
            return 128 + signals.received
        request, plan = allocations.plan(request)
        show_notes(plan, output)
        flags = plan_group_flags(config, request)[0]
        with explained_refusal(config, flags):
            record = allocations.submit(request)
        output.progress(f"script    {record.directory}/job.sh    job {record.job_id}  name {record.job_name}")
        if config.slurm.allocate_by == "salloc":
            output.progress(
                "salloc    it needs this login node until its agents are ready: if its salloc or srun is ended"
            )
            output.progress("          here while it waits, hosts are granted and stay unused: 'monarch-hpc release'")
        if bg:
            if config.slurm.idle_min:
                output.progress(_unused(config.slurm.idle_min))
            next_step = f"follow it: monarch-hpc status {name}"
            output.show(_document(record, None), f"{name}  job {record.job_id}  submitted    {next_step}", [name])
            return 0
        explain = partial(_explain, opens=plan.opens, limit=partial(limits_in_words, config=config, flags=flags))
        progress = _Progress(record, output, explain, config.slurm.idle_min)
        return _wait(allocations, record, progress, signals, min_nodes)


def _with_spares(config: Config, nodes: str | None, spare: int, *, grouped: bool) -> tuple[str, Config]:
    """The number of hosts to ask for, and the configuration of an allocation with so many *spare* ones."""
    if grouped:
        raise click.UsageError("--spare goes with one group of hosts; with several, add hosts to each of them")
    if nodes is not None and not nodes.isdecimal():
        raise click.UsageError(f"--spare goes with a fixed number of hosts: -N is {nodes}")
    return str(int(nodes or "1") + spare), replace(config, heal=replace(config.heal, spare_hosts=spare))


def _exclude(config: Config, request: Request, output: Console) -> Request:
    """Leave out the hosts of the user's list, in every group."""
    excluded = [exclude_hosts(config, flags, output) for flags in plan_group_flags(config, request)]
    if not request.groups:
        return replace(request, options=(*request.options, *excluded[0]))
    groups = zip(request.groups, excluded, strict=True)
    return replace(request, groups=tuple(replace(one, options=(*one.options, *more)) for one, more in groups))


def _explain(reason: str, opens: str, limit: Callable[[str], str]) -> str:
    """Return Slurm's reason in words, with what is known of this request: the reservation's time, the site's limit."""
    words = reason_in_words(reason)
    if opens and reason == "Reservation":
        words += f", at {_moment(opens)}"
    return f"{words}; {said}" if (said := limit(reason)) else words


def _wait(
    allocations: Allocations,
    record: AllocationRecord,
    progress: _Progress,
    signals: _Signals,
    min_hosts: int | None,
) -> int:
    output = progress.output
    try:
        life = allocations.follow(record, progress.show, lambda: signals.received is not None, min_hosts)
    except AllocationError as error:
        # The job still exists, and holds hosts that are of no use.
        allocations.give_back(record, error)
        raise
    if life.stage is Stage.READY:
        if life.ready is not None and life.ready.missing:
            output.warn(f"it begins without {len(life.ready.missing)} host(s): {agents_missing(record, life)}")
        hosts = life.ready.hosts if life.ready else ()
        nodelist = life.granted.nodelist if life.granted else ""
        num_gpus = sum(len(host.gpus) for host in hosts)
        what = f"{len(hosts)} hosts {nodelist}, {sum(host.num_cpus for host in hosts)} cores, {num_gpus} GPUs"
        text = f"{record.name}  job {record.job_id}  {what}  until {_moment(life.end)}"
        output.show(_document(record, life), text, [record.name])
        return 0
    if signals.received == signal.SIGHUP:
        # The terminal is gone, but the allocation is still wanted.
        return 0
    output.progress(f"interrupted: cancelling job {record.job_id}")
    released = allocations.release(record)
    output.progress(
        f"job {record.job_id} is gone from the queue ({format_duration(released.waited_s)}); nothing is left"
    )
    return 128 + (signals.received or signal.SIGINT)


class _Progress:
    """Prints a line for each phase, with its duration."""

    def __init__(
        self, record: AllocationRecord, output: Console, explain: Callable[[str], str], idle_min: float
    ) -> None:
        self._idle_min = idle_min
        self._record = record
        self.output = output
        self._explain = explain
        self._start_s = time.monotonic()
        self._granted_s = self._start_s
        self._reason: str | None = None
        self._granted = False
        self._counted = 0
        self._counted_s = 0.0

    def show(self, life: Lifecycle) -> None:
        now_s = time.monotonic()
        if life.granted is None and self._granted:
            self.output.progress(f"requeued  job {self._record.job_id} goes back to the queue: its agents are gone")
            self._granted = False
            self._counted = 0
        if life.stage is Stage.QUEUED and life.reason and life.reason != self._reason:
            self._reason = life.reason
            self.output.progress(f"queued    {_clock(now_s - self._start_s)}   {self._explain(life.reason)}")
        if life.granted is None:
            return
        if not self._granted:
            self._granted = True
            self._granted_s = now_s
            waited = format_duration(now_s - self._start_s)
            self.output.progress(f"granted   {life.granted.nodelist} until {_moment(life.end)}    after {waited}")
        total = len(life.granted.hosts)
        ready = life.stage is Stage.READY
        count = len(life.ready.hosts) if ready and life.ready else min(life.num_reported, total)
        if count > self._counted and (count == total or now_s - self._counted_s >= _COUNT_EVERY_S):
            self._counted, self._counted_s = count, now_s
            self.output.progress(f"agents    {count}/{total} in {format_duration(now_s - self._granted_s)}")
        if ready:
            name = self._record.name
            use = "monarch-hpc run SCRIPT" if name == "default" else f"monarch-hpc run -a {name} SCRIPT"
            self.output.progress(f"ready     {name}    next: {use}")
            if self._idle_min:
                self.output.progress(_unused(self._idle_min))


class _Signals:
    """Records SIGINT, SIGTERM and SIGHUP instead of dying of them, so that the command can clean up first."""

    _WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> _Signals:
        self._before = [(number, signal.getsignal(number)) for number in self._WATCHED]
        for number, handler in self._before:
            # Under nohup SIGHUP stays ignored.
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number


def _document(record: AllocationRecord, life: Lifecycle | None) -> dict[str, object]:
    hosts: Sequence[dict[str, object]] = ()
    if life is not None and life.ready is not None:
        hosts = [
            {"name": host.name, "group": host.group, "cpus": host.num_cpus, "gpus": len(host.gpus)}
            for host in life.ready.hosts
        ]
    return {
        "allocation": {
            "name": record.name,
            "id": record.allocation,
            "job_id": record.job_id,
            "job_name": record.job_name,
            "directory": str(record.directory),
            "state": "submitted" if life is None else "ready",
            "end": life.end if life is not None else "",
            "hosts": hosts,
            "missing": list(life.ready.missing) if life is not None and life.ready is not None else [],
        }
    }


def _unused(idle_min: float) -> str:
    return f"unused    for {format_duration(idle_min * 60)} without a run or a program, it is released by itself"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def _moment(text: str) -> str:
    """Shorten Slurm's ``2026-11-21T13:37:17``: no seconds, and no date if it is today."""
    day, _, hour = text.partition("T")
    if not hour:
        return text or "an unknown time"
    return hour[:5] if day == time.strftime("%Y-%m-%d") else f"{day} {hour[:5]}"
