"""`monarch-hpc mesh`: the kept meshes of an allocation, which serve later runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from monarch_hpc.cli.allocations.names import allocation_option
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import TextTable, current_output, output_options
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError

if TYPE_CHECKING:
    from monarch_hpc.config import Config
    from monarch_hpc.slurm import AllocationRecord
    from monarch_hpc.wire.tables.calls import ProcCalls

__all__ = ["command"]

_ASK_S = 12.0
"""Time for the head's answer: the way to it may lead over the relay."""

_STOP_S = 15.0
"""Beyond the procs' grace, how long the end of a mesh may take; its agents have earlier deadlines."""


@dataclass(frozen=True, slots=True)
class _Found:
    record: AllocationRecord
    mesh: Mapping[str, object]


@click.group(name="mesh")
def command() -> None:
    """Show and stop meshes that are kept for later runs."""


@command.command(name="list")
@allocation_option
@output_options
def list_meshes(name: str | None) -> None:
    """List the kept meshes of an allocation."""
    record, meshes = _meshes(load_for_command({}).config, name)
    rows = [
        [
            *(str(one["name"]), f"{one['alive']}/{one['procs']}", " ".join(_hosts(one)) or "-"),
            *(str(one["programs"]), str(one["run"])),
        ]
        for one in meshes
    ]
    table: TextTable | str = TextTable(["MESH", "PROCS", "HOSTS", "PROGRAMS", "RUN"], rows) if rows else "no kept mesh"
    document = {"allocation": record.name, "meshes": [dict(one) for one in meshes]}
    current_output().show(document, table, [str(one["name"]) for one in meshes])


@command.command()
@click.argument("mesh")
@allocation_option
@output_options
def show(mesh: str, name: str | None) -> None:
    """Show the procs and actors of a kept mesh."""
    from monarch_hpc.attach.tables.rows import query_rows
    from monarch_hpc.wire.tables.calls import CALLS

    found = _find(load_for_command({}).config, name, mesh)
    where = {"run": found.mesh["run"]}
    answer = query_rows(found.record.directory, CALLS, _ASK_S, where)
    rows = [row for row in answer.rows if row.mesh == found.mesh["mesh"]] if answer is not None else []
    rows.sort(key=lambda row: row.rank)
    shown = [[str(row.rank), row.host, str(row.pid), row.state, _actors(row), row.cause] for row in rows]
    columns = ["rank", "host", "pid", "state", "actors", "cause"]
    one = found.mesh
    text = TextTable([column.upper() for column in columns], shown)
    head = (
        f"{mesh}: {one['alive']} of {one['procs']} procs live, started by run {one['run']}; {one['programs']} programs "
        "use it"
    )
    output = current_output()
    output.progress(head)
    output.show(
        {
            "allocation": found.record.name,
            **dict(one),
            "ranks": [dict(zip(columns, cells, strict=True)) for cells in shown],
        },
        text,
        [mesh],
    )


@command.command()
@click.argument("mesh")
@allocation_option
@output_options
def stop(mesh: str, name: str | None) -> None:
    """End a kept mesh, also while programs use it: their calls to it fail."""
    from monarch_hpc.attach.head.client import ask
    from monarch_hpc.wire.control.kept import KeptStopped, StopKept

    config = load_for_command({}).config
    found = _find(config, name, mesh)
    grace_s = config.procs.stop_s
    answer, _, _ = ask(found.record.directory, StopKept(mesh, grace_s), KeptStopped, grace_s + _STOP_S)
    if answer is None:
        raise AllocationError(
            found.record.name,
            f"its head has not confirmed within {grace_s + _STOP_S:.0f} s that no proc of {mesh} is left; "
            f"'monarch-hpc mesh list -a {found.record.name}' shows whether it is there",
        )
    document = {"allocation": found.record.name, "stopped": mesh, "procs": found.mesh["alive"]}
    current_output().show(document, f"{mesh}: stopped, {found.mesh['alive']} procs", [mesh])


def _meshes(config: Config, name: str | None) -> tuple[AllocationRecord, list[dict[str, object]]]:
    from monarch_hpc.attach.head.status import query_status
    from monarch_hpc.slurm import Allocations

    record = Allocations.open(config).find(name)
    if record.ended is not None:
        raise AllocationError(record.name, f"has ended: {record.ended.state}: {record.ended.reason}")
    head = query_status(record.directory, _ASK_S)
    if head is None:
        raise AllocationError(record.name, f"its head does not answer; see 'monarch-hpc status {record.name}'")
    return record, head["kept"]


def _find(config: Config, name: str | None, mesh: str) -> _Found:
    record, meshes = _meshes(config, name)
    for one in meshes:
        if one["name"] == mesh:
            return _Found(record, one)
    known = ", ".join(str(one["name"]) for one in meshes) or "none"
    raise AllocationError(record.name, f"has no kept mesh {mesh}; it has {known}")


def _hosts(mesh: Mapping[str, object]) -> list[str]:
    hosts = mesh["hosts"]
    return [str(host) for host in hosts] if isinstance(hosts, list) else []


def _actors(row: ProcCalls) -> str:
    return " ".join(sorted({actor.name for actor in row.scene.actors if actor.state in ("spawned", "ready")}))
