"""Groups of hosts on the command line of `alloc`: parts divided by ``:``, as Slurm's own commands take them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from monarch_hpc.cli.option_values import num_hosts
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.slurm import Group
from monarch_hpc.slurm.commands.jobs import JobDetail

__all__ = ["GROUP_OPTION", "GroupedCommand", "plan_groups", "refuse_groups"]

_DIVIDER = ":"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

GROUP_OPTION = click.option("--group", metavar="NAME", help="Name of this group; its number, from 0, if left out.")
"""The option that names a group, in each of the parts."""


class GroupedCommand(click.Command):
    """A command that takes further groups of hosts after its own arguments, in the parameter *groups*."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the first part as other commands do, and each further one as a group."""
        parts: list[list[str]] = [[]]
        for word in args:
            if word == _DIVIDER:
                parts.append([])
            else:
                parts[-1].append(word)
        first, *others = parts
        ctx.params["groups"] = () if ctx.resilient_parsing else tuple(_parse(ctx, part) for part in others)
        return super().parse_args(ctx, first)


@click.command(add_help_option=False)
@click.option("-N", "--nodes", default="1", callback=num_hosts)
@click.option("--gpus-per-node")
@GROUP_OPTION
@click.option("-w", "--nodelist")
@click.option("-x", "--exclude")
@click.option("-p", "--partition")
@click.option("-q", "--qos")
@click.option("-A", "--account")
@click.option("-C", "--constraint")
@click.option("--reservation")
@click.option("--slurm", "options", multiple=True)
def _part() -> None:
    """The options of a group after the first."""


def _parse(parent: click.Context, words: list[str]) -> Group:
    with _part.make_context(_DIVIDER, words, parent=parent) as context:
        given = context.params
    nodes, gpus, name, options = (given.pop(key) for key in ("nodes", "gpus_per_node", "group", "options"))
    named = (f"--{key}={value}" for key, value in given.items() if value is not None)
    return Group(name or "", nodes, gpus, (*named, *options))


def plan_groups(first: Group, others: Sequence[Group]) -> tuple[Group, ...]:
    """Return all groups with their names; none if there is only the first.

    Raises:
        UsageError: a name is not one, or is given twice; or the only group has one.
    """
    if not others:
        if first.name:
            raise click.UsageError(f"--group {first.name}: there is one group only; write further ones after ' : '")
        return ()
    named = tuple(
        Group(group.name or str(index), group.num_hosts, group.gpus_per_node, group.options)
        for index, group in enumerate((first, *others))
    )
    names = [group.name for group in named]
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise click.UsageError(f"--group {name!r}: a name has letters, digits, '_', '.' and '-'")
        if names.count(name) > 1:
            raise click.UsageError(f"--group {name}: two groups have this name")
    return named


def refuse_groups(name: str, job: JobDetail) -> None:
    """Refuse to change the job of the allocation *name* if it is heterogeneous.

    Raises:
        AllocationError: it is.
    """
    if len(job.components) > 1:
        raise AllocationError(
            name,
            f"job {job.job_id} has {len(job.components)} groups of hosts, and Slurm changes no such job while it runs; "
            "take another allocation beside it",
        )
