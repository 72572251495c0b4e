"""Names of allocations and hosts as types of arguments; shells complete them from files of earlier commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

if TYPE_CHECKING:
    from monarch_hpc.slurm.registry import Registry

__all__ = ["ALLOCATION", "HOST", "allocation_option"]


class _AllocationName(StringParamType):
    """The name of an allocation; the live ones complete it."""

    name = "allocation"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the live allocations; asks no daemon."""
        return _items((record.name for record in _registry().records() if record.live), incomplete)


class _HostName(StringParamType):
    """The name of a host; those of live allocations, and those on the list of bad ones, complete it."""

    name = "host"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the known hosts; asks no daemon."""
        from monarch_hpc.slurm.directory import look
        from monarch_hpc.slurm.nodes.exclusions import Exclusions

        registry = _registry()
        names = {one.host for one in Exclusions(registry.root).all()}
        for record in registry.records():
            granted = look(record.directory).granted if record.live else None
            names.update(granted.hosts if granted is not None else ())
        return _items(names, incomplete)


ALLOCATION = _AllocationName()

allocation_option = click.option(
    "-a", "--allocation", "name", type=ALLOCATION, metavar="NAME", help="The allocation, if there are several."
)
HOST = _HostName()


def _registry() -> Registry:
    # Late, as above: a command that completes nothing does not need them.
    from monarch_hpc.cli.main import load_for_command
    from monarch_hpc.slurm.registry import Registry

    return Registry(load_for_command({}).config.paths.state)


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(set(names)) if name.startswith(incomplete)]
