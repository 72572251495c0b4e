"""The allocation that a program runs on: the one it was started in, one that it makes, or an embedded one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.agent.local import open_local
from monarch_hpc.agent.settings import read_config
from monarch_hpc.config.load import load
from monarch_hpc.config.program import read_program
from monarch_hpc.config.schema import Config
from monarch_hpc.core.ids import new_run_id

__all__ = ["TAKEN", "Opened", "Opener", "open_allocation"]

Opener = Callable[[ExitStack], Path]
"""Makes an allocation that ends with the stack, and returns its directory."""

TAKEN = (
    "this program has its hosts already, and a program has those of one allocation: attach before the first use of "
    "hosts(), this_host() or this_proc(), and to all workers at once"
)


@dataclass(frozen=True, slots=True)
class Opened:
    """An allocation, and this program's run on it.

    Attributes:
        owner: whether the program itself owns the run; else `monarch-hpc run` does.
        resources: what ends with the run.
    """

    directory: Path
    config: Config
    run: str
    owner: bool
    resources: ExitStack


def open_allocation(opener: Opener | None) -> Opened:
    """Find or make the allocation.

    Args:
        opener: makes it; None for the one that the program was started in, or an embedded one.
    """
    resources = ExitStack()
    program = read_program()
    try:
        if opener is not None:
            return _own(opener(resources), resources)
        if program.directory is None:
            return _own(resources.enter_context(open_local(1, load().config)), resources)
        run = program.run or new_run_id()
        return Opened(program.directory, read_config(program.directory), run, not program.run, resources)
    except BaseException:
        resources.close()
        raise


def _own(directory: Path, resources: ExitStack) -> Opened:
    return Opened(directory, read_config(directory), new_run_id(), True, resources)
