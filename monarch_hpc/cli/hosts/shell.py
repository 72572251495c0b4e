"""`monarch-hpc shell`: opens a terminal on a host of an allocation, without a login there."""

from __future__ import annotations

import click

from monarch_hpc.cli.allocations.names import ALLOCATION, HOST
from monarch_hpc.cli.main import load_to_start
from monarch_hpc.cli.output import output_options

__all__ = ["command"]


@click.command()
@click.argument("host", default="0", type=HOST)
@click.option(
    "-a",
    "--allocation",
    "name",
    type=ALLOCATION,
    metavar="NAME",
    help="The allocation; needed only if there are several.",
)
@click.option("-D", "--chdir", metavar="PATH", help="Directory to start in; this one, if the host has it.")
@output_options
def command(host: str, name: str | None, chdir: str | None) -> int:
    """Open a shell on a host of an allocation.

    HOST is a host's name or rank, the first host if left out. Needs no sshd there: the terminal travels over the
    allocation's own channels. The exit code is that of the shell.
    """
    config = load_to_start({}).config
    # Imported late: these load what a program needs, which takes longer than to find a mistake above.
    from monarch_hpc.cli.hosts.choice import open_hosts
    from monarch_hpc.job.shell import shell

    with open_hosts(config, name, [host]) as mesh:
        return shell(mesh, workdir=chdir)
