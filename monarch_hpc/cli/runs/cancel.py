"""`monarch-hpc cancel`: ends a program that runs on an allocation's first host, or sends it a signal."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from monarch_hpc.allocation.settings import name_of
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.option_values import seconds_or_zero
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AllocationError, TransportError

__all__ = ["cancel", "command"]

_CLOSE_S = 30.0
"""Beyond the grace, how long the head may take to end a program and its procs; it has an earlier deadline."""


@click.command()
@click.argument("run")
@click.option("-a", "--allocation", "name", metavar="NAME", help="The run's allocation.")
@click.option("--signal", "word", metavar="SIGNAL", help="Send only this signal, e.g. USR1.")
@click.option(
    "--grace",
    "chosen_s",
    metavar="TIME",
    callback=seconds_or_zero,
    help="Time until the program is killed: 30s, 2m, 0 for at once; after --signal, too.",
)
@output_options
def command(run: str, name: str | None, word: str | None, chosen_s: int | None) -> int:
    """End a run.

    Its program gets SIGTERM, and SIGKILL after the grace; then nothing of its procs is left.
    """
    from monarch_hpc.cli.runs.search import find_program

    config = load_for_command({}).config
    number = _number(word)
    grace_s = config.run.stop_grace_s if chosen_s is None else chosen_s
    ends = word is None or chosen_s is not None
    found = find_program(config, name, run)
    try:
        how = cancel(found.directory, run, config, number, grace_s, ends=ends)
    except TransportError as error:
        raise AllocationError(found.name, f"its head cannot be reached: {error}") from error
    sent = signal.Signals(number).name
    text = f"run {run} has ended: {how}" if how else f"sent {sent} to run {run}"
    current_output().show({"run": run, "allocation": found.name, "signal": sent, "ended": how}, text, [run])
    return 0


def cancel(directory: Path, run: str, config: Config, number: int, grace_s: float, *, ends: bool) -> str:
    """Send a signal to a program's group; if that *ends* it, kill it after the grace, and return its end in words.

    Raises:
        AllocationError: the program cannot be signalled, or has not ended.
        TransportError: the head cannot be reached.
    """
    from monarch_hpc.attach.program_client import ProgramClient
    from monarch_hpc.wire.control.programs import AT_END

    deadline = Deadline(grace_s + config.procs.stop_s + _CLOSE_S)
    client = ProgramClient(directory, run, lambda _output: None, lambda: None)
    try:
        client.signal(number, group=True, grace_s=grace_s if ends else -1.0)
        problem = client.wait_for_signal(deadline.left_s())
        if ends:  # it may have ended before
            client.read(AT_END)
            client.wait(deadline.left_s())
            problem = client.refusal or client.lost or f"it has not ended within {deadline.timeout_s:.0f} s"
    finally:
        client.close()
    if problem and client.end is None:
        raise AllocationError(name_of(directory), f"run {run}: {problem}")
    return client.end.cause if client.end is not None else ""


def _number(word: str | None) -> int:
    if word is None:
        return signal.SIGTERM
    name = word.upper().removeprefix("SIG")
    numbers = {one.name.removeprefix("SIG"): one.value for one in signal.Signals}
    number = int(name) if name.isdecimal() else numbers.get(name, 0)
    if number not in signal.valid_signals():
        raise click.BadParameter(f"'{word}' is not a signal", param_hint="'--signal'")
    return number
