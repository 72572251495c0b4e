"""`monarch-hpc exec`: runs a command on hosts of an allocation, without a Slurm step or a login there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import click

from monarch_hpc.cli.allocations.names import ALLOCATION, HOST
from monarch_hpc.cli.main import load_to_start
from monarch_hpc.cli.output import Format, current_output, output_options
from monarch_hpc.core.text.hostlist import expand
from monarch_hpc.wire.control.procs import MAX_PROCS_PER_HOST

__all__ = ["command"]


@click.command(context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]")
@click.option(
    "-a",
    "--allocation",
    "name",
    type=ALLOCATION,
    metavar="NAME",
    help="The allocation; needed only if there are several.",
)
@click.option("--host", "hosts", type=HOST, metavar="HOSTS", help="Only these hosts: n2, or n[2-4,7].")
@click.option("--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="Only the host of this rank.")
@click.option(
    "--per-node",
    type=click.IntRange(1, MAX_PROCS_PER_HOST),
    default=1,
    metavar="N",
    help="Number of commands on each host.",
)
@click.option("-D", "--chdir", metavar="PATH", help="Directory to run in; this one, on hosts that have it.")
@output_options
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARGS]...")
def command(
    name: str | None,
    hosts: str | None,
    ranks: tuple[int, ...],
    per_node: int,
    chdir: str | None,
    words: tuple[str, ...],
) -> int:
    """Run a command on the hosts of an allocation.

    On all hosts at once, if none is named. Lines of output come with rank and host in front; the exit code is the
    largest one. In the command's environment, MONARCH_RANK_hosts and MONARCH_SIZE_hosts give its place. Ctrl-C ends
    the commands.
    """
    if hosts is not None and ranks:
        raise click.UsageError("--host and --rank exclude each other")
    wanted = [str(rank) for rank in ranks] if hosts is None else expand(hosts)
    config = load_to_start({}).config
    output = current_output()
    # Imported late: these load what a program needs, which takes longer than to find a mistake above.
    from monarch_hpc.cli.hosts.choice import open_hosts
    from monarch_hpc.job.execute import exec_command

    with _results_apart(output.format is Format.JSON), open_hosts(config, name, wanted) as mesh:
        names = [entry.name for entry in mesh.entries]
        per_host = {"commands": per_node} if per_node > 1 else None
        code = exec_command(mesh, words, workdir=chdir, per_host=per_host).get()
    if output.format is Format.JSON:
        output.show({"command": list(words), "hosts": names, "per_host": per_node, "exit_code": code}, "")
    return code


@contextlib.contextmanager
def _results_apart(apart: bool) -> Iterator[None]:
    """Send the commands' output to stderr if *apart*, so that stdout gets the JSON object and nothing else."""
    if not apart:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
