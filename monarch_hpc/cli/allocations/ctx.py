"""`monarch-hpc ctx`: the current allocation, which commands use unless they name one."""

from __future__ import annotations

import click

from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.slurm import Allocations

__all__ = ["command"]


@click.group(name="ctx")
def command() -> None:
    """Choose the current allocation."""


@command.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option("--clear", is_flag=True, help="Choose none: the only live allocation, or 'default', is used again.")
@output_options
def use(name: str | None, clear: bool) -> None:
    """Make an allocation the current one, for all commands without '-a NAME', in all terminals."""
    if clear == (name is not None):
        raise click.UsageError("name an allocation, or give --clear")
    allocations = Allocations.open(load_for_command({}).config)
    if name is None:
        allocations.registry.set_current(None)
        current_output().show({"current": None}, "no allocation is the current one")
        return
    record = allocations.find(name)
    if record.ended is not None:
        raise AllocationError(record.name, f"has ended: {record.ended.state}: {record.ended.reason}")
    allocations.registry.set_current(record.name)
    current_output().show({"current": record.name}, f"{record.name} is the current allocation", [record.name])


@command.command()
@output_options
def show() -> None:
    """Show the allocation that commands use if you name none."""
    allocations = Allocations.open(load_for_command({}).config)
    current = allocations.registry.current()
    used = allocations.find(None)  # an error says why there is none, and what to do
    why = "chosen by 'ctx use'" if current == used.name else "no other was chosen"
    document = {"current": current, "used": used.name, "job_id": used.job_id}
    current_output().show(document, f"{used.name}  job {used.job_id or '-'}  ({why})", [used.name])
