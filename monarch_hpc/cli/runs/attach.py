"""`monarch-hpc attach`: shows a program that runs on an allocation's first host, and passes keys and signals on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import current_output
from monarch_hpc.core.errors import AllocationError, JobFailed, TransportError

__all__ = ["command", "on_interrupt_option"]

_Function = TypeVar("_Function", bound=Callable[..., object])


def on_interrupt_option(function: _Function) -> _Function:
    """Add the option ``--on-interrupt`` to a command."""
    return click.option(
        "--on-interrupt",
        type=click.Choice(["detach", "cancel"]),
        help="What the first Ctrl-C does: leave the run alone, or end it.",
    )(function)


@click.command()
@click.argument("run", required=False)
@click.option("-a", "--allocation", "name", metavar="NAME", help="The run's allocation.")
@click.option("--all", "whole", is_flag=True, help="Show its output from the begin, not only what was not shown yet.")
@on_interrupt_option
def command(run: str | None, name: str | None, whole: bool, on_interrupt: str | None) -> int:
    """Show a run that goes on without a terminal.

    RUN is needed only if several programs run. The output goes on where the last terminal has left off. Ctrl-C detaches
    again, and a second one within 2 s ends the run; the exit code is the program's.
    """
    from monarch_hpc.allocation.programs import read_exit
    from monarch_hpc.cli.runs.files import show_files
    from monarch_hpc.cli.runs.mirror import Mirror
    from monarch_hpc.cli.runs.place import OnInterrupt
    from monarch_hpc.cli.runs.search import find_program
    from monarch_hpc.cli.runs.session import Session, tell_detached
    from monarch_hpc.cli.runs.terminal import has_terminal

    config = load_for_command({}).config
    output = current_output()
    found = find_program(config, name, run)
    program = found.program
    terminal = program.terminal and has_terminal()
    session = Session(
        found.name,
        found.directory,
        program.run,
        config,
        output,
        OnInterrupt(on_interrupt or "detach"),
        first=0 if whole else -1,
        terminal=terminal,
        reads=terminal,
    )
    try:
        outcome = session.follow()
    except (AllocationError, JobFailed, TransportError):
        end = read_exit(found.directory, program.run)
        if end is None:
            raise
        return show_files(found.directory, program.run, Mirror(0, lambda: None), end)
    tell_detached(outcome, program.run, output)
    return outcome.exit_code
