"""`monarch-hpc attach`: shows a program that runs on an allocation's first host, and passes keys and signals on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import Console, current_output
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError, JobFailed, TransportError

__all__ = ["command", "exit_raw_option", "on_interrupt_option", "on_loss_option"]

_Function = TypeVar("_Function", bound=Callable[..., object])


def on_interrupt_option(function: _Function) -> _Function:
    """Add the option ``--on-interrupt`` to a command."""
    return click.option(
        "--on-interrupt",
        type=click.Choice(["detach", "cancel"]),
        help="What the first Ctrl-C does: leave the run alone (default of attach and logs), or end it (of run).",
    )(function)


def on_loss_option(function: _Function) -> _Function:
    """Add the option ``--on-loss`` to a command."""
    return click.option(
        "--on-loss",
        type=click.Choice(["stop", "hold", "finish"]),
        help="What becomes of the procs if the program is killed: end them, keep them, or let calls end first. "
        "Default: config key run.on_loss.",
    )(function)


def exit_raw_option(function: _Function) -> _Function:
    """Add the option ``--exit-raw`` to a command; the command does not see it."""

    def note(_context: click.Context, _option: click.Parameter, given: bool) -> None:
        current_output().raw_exit = given

    return click.option(
        "--exit-raw",
        is_flag=True,
        expose_value=False,
        callback=note,
        help="Exit with 1, not 65 to 79, when monarch-hpc fails, since the program may mean something by those.",
    )(function)


@click.command()
@click.argument("run", required=False)
@click.option("-a", "--allocation", "name", metavar="NAME", help="The run's allocation.")
@click.option("--all", "whole", is_flag=True, help="Show its output from the begin, not only what was not shown yet.")
@click.option("--takeover", is_flag=True, help="Start SCRIPT here, as the run's program in place of the earlier one.")
@on_loss_option
@on_interrupt_option
@exit_raw_option
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT [ARGS]...]")
def command(
    run: str | None,
    name: str | None,
    whole: bool,
    takeover: bool,
    on_loss: str | None,
    on_interrupt: str | None,
    program: tuple[str, ...],
) -> int:
    """Show a run that goes on without a terminal, or take it over.

    RUN is needed only if several programs run; if none does, the last one is shown, and how it ended. The output goes
    on where the last terminal has left off. Ctrl-C detaches again, and a second one within 2 s ends the run; the exit
    code is the program's.

    With --takeover, SCRIPT takes over the procs and actors of the run. If the old program still runs, it is told, and
    ends.
    """
    if takeover != bool(program) or (takeover and run is None):
        raise click.UsageError("a takeover names the run and the new program: attach RUN --takeover -- SCRIPT")
    from monarch_hpc.allocation.programs import read_exit
    from monarch_hpc.cli.runs.files import show_files
    from monarch_hpc.cli.runs.mirror import Mirror
    from monarch_hpc.cli.runs.place import OnInterrupt
    from monarch_hpc.cli.runs.search import find_program
    from monarch_hpc.cli.runs.session import Session, tell_detached
    from monarch_hpc.cli.runs.terminal import has_terminal

    config = load_for_command({}).config
    output = current_output()
    if takeover and run is not None:
        return _take_over(config, name, run, program, on_loss or "hold", output)
    found = find_program(config, name, run)
    known = found.program
    terminal = known.terminal and has_terminal()
    session = Session(
        found.name,
        found.directory,
        known.run,
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
        end = read_exit(found.directory, known.run)
        if end is None:
            raise
        return show_files(found.directory, known.run, Mirror(0, lambda: None), end)
    tell_detached(outcome, known.run, output)
    return outcome.exit_code


def _take_over(
    config: Config, name: str | None, run: str, program: tuple[str, ...], on_loss: str, output: Console
) -> int:
    from monarch_hpc.cli.runs.command_line import Missing, plan_argv
    from monarch_hpc.cli.runs.takeover import run_successor

    argv = plan_argv(program, plain=Path(program[0]).suffix != ".py")
    if isinstance(argv, Missing):
        output.error(argv.kind, argv.sentence, output.exit_code(argv.exit_code))
        return output.exit_code(argv.exit_code)
    return run_successor(config, name, run, argv, on_loss, output)
