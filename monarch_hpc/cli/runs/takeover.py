"""`monarch-hpc attach RUN --takeover`: starts a program that takes a run over, and waits for its end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from monarch_hpc.attach.head.status import query_status
from monarch_hpc.cli.child import Child, End, block_signals
from monarch_hpc.cli.output import Console
from monarch_hpc.config import Config
from monarch_hpc.config.program import (
    DIRECTORY_VARIABLE,
    ON_LOSS_VARIABLE,
    RUN_VARIABLE,
    TAKES_VARIABLE,
    without_program,
)
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import Allocations

__all__ = ["run_successor", "tell_lost"]


@dataclass(frozen=True, slots=True)
class _Held:
    """A run that is open, and its allocation."""

    name: str
    directory: Path
    epoch: int


def run_successor(
    config: Config, name: str | None, run: str, argv: Sequence[str], on_loss: str, output: Console
) -> int:
    """Start *argv* with the orders to take *run* over, and return its exit code.

    Args:
        name: the run's allocation; None for all that the registry has.
        on_loss: see config key `run.on_loss`, for the new program.

    Raises:
        AllocationError: there is no such run, or its head does not answer.
    """
    found = _find(config, name, run)
    environment = {
        **without_program(os.environ),
        DIRECTORY_VARIABLE: str(found.directory),
        RUN_VARIABLE: run,
        ON_LOSS_VARIABLE: on_loss,
        TAKES_VARIABLE: str(found.epoch),
    }
    block_signals()
    child = Child(argv, environment)
    end = child.wait(lambda: False, config.run.stop_grace_s)
    if end is End.ITSELF and child.killed and on_loss != "stop":
        tell_lost(run, found.name, found.directory, on_loss, config, output)
    return child.exit_code


def tell_lost(run: str, name: str, directory: Path, on_loss: str, config: Config, output: Console) -> None:
    """Tell what has become of a run whose program was killed, and which command takes it over.

    The head is asked: a run without procs has nothing to hold, and ends at once.
    """
    if not _stands(run, directory, Deadline(config.transport.relay_s)):
        output.progress(f"the program was killed; run {run} has ended with it: there were no procs to keep")
        return
    keeps = f"run {run} keeps its procs for {format_duration(config.run.hold_s)}"
    if on_loss == "finish":
        keeps = f"the procs of run {run} finish their calls, and end then"
    takes = f"'monarch-hpc attach {run} -a {name} --takeover -- SCRIPT' takes it over"
    output.progress(f"the program was killed; {keeps}: {takes}")


def _stands(run: str, directory: Path, deadline: Deadline) -> bool:
    """Whether a run is held; true if the head does not say so in time."""
    while not deadline.passed():
        status = query_status(directory, deadline.left_s())
        if status is None:
            return True
        states = [known.get("state") for known in status["runs"] if known.get("run") == run]
        if states != ["running"]:  # else the head has not noticed yet
            return states == ["held"]
    return True


def _find(config: Config, name: str | None, run: str) -> _Held:
    registry = Allocations.open(config).registry
    records = [registry.find(name)] if name is not None else [one for one in registry.records() if one.live]
    silent = []
    for record in records:
        status = query_status(record.directory, config.transport.relay_s)
        if status is None:
            silent.append(record.name)
            continue
        for known in status["runs"]:
            epoch = known.get("epoch")
            if known.get("run") == run and known.get("state") != "closing" and isinstance(epoch, int):
                return _Held(record.name, record.directory, epoch)
    problem = f"there is no run {run} to take over: it has ended, or was held for longer than 'run.hold_s'"
    if silent:
        problem = f"{problem}; no answer from {', '.join(silent)}"
    raise AllocationError(name or run, problem)
