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
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import Allocations

__all__ = ["run_successor", "tell_held"]


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
        tell_held(run, found.name, config, output)
    return child.exit_code


def tell_held(run: str, name: str, config: Config, output: Console) -> None:
    """Name the command that takes a held run over."""
    output.progress(
        f"the program was killed; run {run} keeps its procs for {format_duration(config.run.hold_s)}: "
        f"'monarch-hpc attach {run} -a {name} --takeover -- SCRIPT' takes it over"
    )


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
