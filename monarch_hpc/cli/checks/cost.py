"""`monarch-hpc cost`: shows what allocations and their reservations have taken, and what is left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import click

from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import TextTable, current_output, output_options
from monarch_hpc.core.errors import SlurmCommandError
from monarch_hpc.core.storage.files import private_dir, read_json, write_json
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import AllocationRecord, Allocations
from monarch_hpc.slurm.usage import (
    JobUsage,
    ReservationUsage,
    idle_warning,
    measure_job,
    measure_reservation,
)

__all__ = ["command"]


@click.command()
@click.argument("name", required=False)
@output_options
def command(name: str | None) -> int:
    """Show node-hours and time left of allocations.

    Their reservations are shown, too: sites charge these in full, used or not. The numbers are hosts times hours; what
    you pay is up to your site.
    """
    config = load_for_command({}).config
    output = current_output()
    allocations = Allocations.open(config)
    census = allocations.reconcile(config.slurm.poll_min_s)
    if census.problem is not None:
        raise census.problem
    records = [r for r in census.records if r.live] if name is None else [allocations.find(name)]
    further = [job for record in records for job in (record, *allocations.registry.joined(record))]
    jobs = [(record, usage) for record in further if (usage := _measure(allocations, record)) is not None]
    meters = _meters(allocations, sorted({usage.reservation for _, usage in jobs} - {""}), config.paths.state)
    for meter in meters:
        if warning := idle_warning(meter, config.limits.reservation_idle_min):
            output.warn(warning)
    document = {
        "allocations": [{"name": record.name, "job_id": record.job_id, **asdict(usage)} for record, usage in jobs],
        "reservations": [asdict(meter) for meter in meters],
    }
    columns = ["NAME", "HOSTS", "IN USE", "USED", "LEFT", "NODE-HOURS", "AT THE END"]
    rows = [*(_job_row(record, usage) for record, usage in jobs), *(_meter_row(meter) for meter in meters)]
    text: TextTable | str = TextTable(columns, rows) if rows else "there is no allocation"
    output.show(document, text, [f"{usage.node_hours:.2f}" for _, usage in jobs])
    return 0


def _measure(allocations: Allocations, record: AllocationRecord) -> JobUsage | None:
    if record.job_id is None:
        return None
    detail = allocations.slurm.find_job(record.job_id, record.job_name)
    return None if detail is None else measure_job(detail, time.time())


def _meters(allocations: Allocations, names: Sequence[str], state: Path) -> list[ReservationUsage]:
    if not names:
        return []
    try:
        reservations = allocations.slurm.reservations()
    except SlurmCommandError:
        return []
    meters = []
    for found in reservations:
        if found.name not in names:
            continue
        num_free = allocations.slurm.count_free(found.nodes) if found.nodes else None
        # Slurm keeps no history of a reservation's use; what each call of this command saw is kept here.
        path = private_dir(state / "reservations") / f"{quote(found.name, safe='')}.json"
        meter = measure_reservation(found, num_free, _read_busy(path), time.time())
        if meter.num_used is not None and not meter.idle_s:
            write_json(path, {"busy_s": time.time()})
        meters.append(meter)
    return meters


def _read_busy(path: Path) -> float | None:
    if not path.exists():
        return None
    kept = read_json(path)
    seen = kept.get("busy_s") if isinstance(kept, dict) else None
    return seen if isinstance(seen, float) else None


def _job_row(record: AllocationRecord, usage: JobUsage) -> list[str]:
    left = "waits" if usage.left_s is None else format_duration(usage.left_s)
    at_end = "-" if usage.node_hours_at_end is None else f"{usage.node_hours_at_end:.2f}"
    used = format_duration(usage.used_s)
    return [record.name, str(usage.num_hosts), "-", used, left, f"{usage.node_hours:.2f}", at_end]


def _meter_row(meter: ReservationUsage) -> list[str]:
    used = "?" if meter.num_used is None else str(meter.num_used)
    at_end = meter.node_hours + meter.num_hosts * meter.left_s / 3600
    left = format_duration(meter.left_s)
    name = f"reservation {meter.name}"
    return [name, str(meter.num_hosts), used, "-", left, f"{meter.node_hours:.2f}", f"{at_end:.2f}"]
