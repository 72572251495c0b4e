"""`monarch-hpc alloc`: requests hosts from Slurm, and waits until their agents are ready."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType, TracebackType

import click

from monarch_hpc.cli.main import load_to_start
from monarch_hpc.cli.output import Console, current_output, output_options
from monarch_hpc.core.errors import AllocationError, MonarchError
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.text.units import format_duration, parse_duration
from monarch_hpc.slurm import (
    AllocationRecord,
    Allocations,
    Lifecycle,
    Request,
    Stage,
    check_name,
    reason_in_words,
    render_script,
)

__all__ = ["command"]

# Thousands of agents may report within seconds; a line for each would hide all else.
_COUNT_EVERY_S = 1.0


@click.command()
@click.argument("name", default="default")
@click.option("-N", "--nodes", metavar="N", help="Number of hosts, as for sbatch: 4, or 2-4.")
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit: 30 (minutes), 2h, H:MM:SS, D-HH.")
@click.option("-p", "--partition", metavar="NAME", help="Partition.")
@click.option("-q", "--qos", metavar="NAME", help="Quality of service.")
@click.option("-A", "--account", metavar="NAME", help="Account to charge.")
@click.option("-C", "--constraint", metavar="FEATURES", help="Features that hosts must have.")
@click.option("-w", "--nodelist", metavar="HOSTS", help="Hosts that must be included.")
@click.option("-x", "--exclude", metavar="HOSTS", help="Hosts that must not be included.")
@click.option("--reservation", metavar="NAME", help="Reservation to use.")
@click.option("--gpus-per-node", metavar="N", help="GPUs on each host: 4, or a100:4.")
@click.option("--slurm", "options", multiple=True, metavar='"--OPTION=VALUE"', help="Any other option of sbatch.")
@click.option("--bg", is_flag=True, help="Return at once; 'monarch-hpc status' shows when the allocation is ready.")
@click.option("--dry-run", is_flag=True, help="Print the batch script and stop.")
@output_options
def command(
    name: str,
    nodes: str | None,
    time_limit: str | None,
    partition: str | None,
    qos: str | None,
    account: str | None,
    constraint: str | None,
    nodelist: str | None,
    exclude: str | None,
    reservation: str | None,
    gpus_per_node: str | None,
    options: tuple[str, ...],
    bg: bool,
    dry_run: bool,
) -> int:
    """Take hosts from Slurm and hold them.

    Returns when the agents on all hosts are ready. NAME is a name for the allocation ('default' if left out). Ctrl-C
    during the wait releases the hosts.
    """
    config = load_to_start(
        {
            # Slurm counts in minutes: round up.
            "slurm.time_min": None if time_limit is None else -(-parse_duration(time_limit) // 60),
            "slurm.partition": partition,
            "slurm.qos": qos,
            "slurm.account": account,
            "slurm.constraint": constraint,
            "slurm.reservation": reservation,
        }
    ).config
    # Options of the command line come last, so that they override the profile's.
    given = {"nodes": nodes, "nodelist": nodelist, "exclude": exclude}
    allocation = new_allocation_id()
    request = Request(
        allocation=allocation,
        name=name,
        directory=config.paths.shared / allocation[:8],
        num_hosts=nodes or "1",
        gpus_per_node=gpus_per_node,
        options=(*(f"--{flag}={value}" for flag, value in given.items() if value is not None), *options),
    )
    check_name(name)
    output = current_output()
    if dry_run:
        script = render_script(config, request)
        output.show({"script": script}, script.removesuffix("\n"), script.splitlines())
        return 0
    with _Signals() as signals:
        allocations = Allocations.open(config)
        for change in allocations.reconcile(config.slurm.poll_min_s).changes:
            output.progress(change)
        if signals.received is not None:
            return 128 + signals.received
        record = allocations.submit(request)
        output.progress(f"script    {record.directory}/job.sh    job {record.job_id}  name {record.job_name}")
        if bg:
            next_step = f"follow it: monarch-hpc status {name}"
            output.show(_document(record, None), f"{name}  job {record.job_id}  submitted    {next_step}", [name])
            return 0
        return _wait(allocations, record, output, signals)


def _wait(allocations: Allocations, record: AllocationRecord, output: Console, signals: _Signals) -> int:
    progress = _Progress(record, output)
    try:
        life = allocations.follow(record, progress.show, lambda: signals.received is not None)
    except AllocationError as error:
        # The job still exists, and holds hosts that are of no use.
        _release(allocations, record, error)
        raise
    if life.stage is Stage.READY:
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


def _release(allocations: Allocations, record: AllocationRecord, error: MonarchError) -> None:
    try:
        allocations.release(record)
    except MonarchError as failed:
        error.add_note(f"job {record.job_id} could not be released yet: {failed}")
    else:
        error.add_note(f"job {record.job_id} was released; its output stays in {record.directory}")


class _Progress:
    """Prints a line for each phase, with its duration."""

    def __init__(self, record: AllocationRecord, output: Console) -> None:
        self._record = record
        self._output = output
        self._start_s = time.monotonic()
        self._granted_s = self._start_s
        self._reason: str | None = None
        self._granted = False
        self._counted = 0
        self._counted_s = 0.0

    def show(self, life: Lifecycle) -> None:
        now_s = time.monotonic()
        if life.granted is None and self._granted:
            self._output.progress(f"requeued  job {self._record.job_id} goes back to the queue: its agents are gone")
            self._granted = False
            self._counted = 0
        if life.stage is Stage.QUEUED and life.reason and life.reason != self._reason:
            self._reason = life.reason
            self._output.progress(f"queued    {_clock(now_s - self._start_s)}   {reason_in_words(life.reason)}")
        if life.granted is None:
            return
        if not self._granted:
            self._granted = True
            self._granted_s = now_s
            waited = format_duration(now_s - self._start_s)
            self._output.progress(f"granted   {life.granted.nodelist} until {_moment(life.end)}    after {waited}")
        total = len(life.granted.hosts)
        ready = life.stage is Stage.READY
        count = total if ready else min(life.num_reported, total)
        if count > self._counted and (count == total or now_s - self._counted_s >= _COUNT_EVERY_S):
            self._counted, self._counted_s = count, now_s
            self._output.progress(f"agents    {count}/{total} in {format_duration(now_s - self._granted_s)}")
        if ready:
            name = self._record.name
            use = "monarch-hpc run SCRIPT" if name == "default" else f"monarch-hpc run -a {name} SCRIPT"
            self._output.progress(f"ready     {name}    next: {use}")


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
        hosts = [{"name": host.name, "cpus": host.num_cpus, "gpus": len(host.gpus)} for host in life.ready.hosts]
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
        }
    }


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
