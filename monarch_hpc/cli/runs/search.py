"""The program that a command means: by its run, the only one that runs, or the last one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from monarch_hpc.agent.output.retention import printed_runs
from monarch_hpc.allocation.programs import ProgramRecord, read_exit, read_program
from monarch_hpc.config import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.slurm import Allocations

__all__ = ["Found", "find_program"]

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Found:
    """A program, and the allocation of its run."""

    name: str
    directory: Path
    program: ProgramRecord


def find_program(config: Config, name: str | None, run: str | None) -> Found:
    """Return the program of *run*; without it, the only one that runs, or if none does, the one that started last.

    Args:
        name: the allocation; None for all that the registry has.

    Raises:
        AllocationError: there is none, or several run; or the run's program runs elsewhere.
    """
    registry = Allocations.open(config).registry
    records = [registry.find(name)] if name is not None else registry.records()
    if run is not None:
        for record in records:
            found = _program(record.directory, run)
            if found is not None:
                return Found(record.name, record.directory, found)
        raise AllocationError(name or run, _why_not(records_of=[record.directory for record in records], run=run))
    there = [
        Found(record.name, record.directory, found)
        for record in records
        if record.live
        for found in _programs(record.directory)
    ]
    running = [found for found in there if read_exit(found.directory, found.program.run) is None]
    if len(running) == 1:
        return running[0]
    if not there:
        raise AllocationError(name or "any", "no program ran on an allocation's host; 'run --on host0' starts one")
    if not running:  # one that ended while its user typed
        return sorted(there, key=lambda found: found.program.at_s)[-1]
    named = ", ".join(f"{found.program.run} ({found.program.title:.40})" for found in running[-_NAMED:])
    raise AllocationError(name or "any", f"{len(running)} programs run; name one: {named}")


def _why_not(records_of: Iterable[Path], run: str) -> str:
    if any(run in printed_runs(directory) for directory in records_of):
        return f"the program of run {run} runs where it was started, and ends there; 'monarch-hpc logs' shows its procs"
    return f"there is no run {run}; 'monarch-hpc status' lists those that go on"


def _program(directory: Path, run: str) -> ProgramRecord | None:
    if not run or "/" in run or run.startswith("."):
        return None
    try:
        return read_program(directory, run)
    except (ConfigError, OSError):  # another user's, or damaged
        return None


def _programs(directory: Path) -> list[ProgramRecord]:
    found = (_program(directory, run) for run in printed_runs(directory))
    return [program for program in found if program is not None]
