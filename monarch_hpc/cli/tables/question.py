"""Asking all processes of allocations for their rows of a table, with warnings about those that did not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from monarch_hpc.cli.output import Console
from monarch_hpc.cli.tables.absence import refuse_absent
from monarch_hpc.config import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.wire.tables.schema import Table

__all__ = ["NO_ALLOCATION", "AllocationRows", "Question", "find_askable"]

R = TypeVar("R")

_WAIT_S = 2.0
"""Longer than a live host takes to answer, and still short enough to wait for one that does not."""

NO_ALLOCATION = "there is no allocation; take one: monarch-hpc alloc NAME -N HOSTS -t MINUTES"


@dataclass(frozen=True, slots=True)
class AllocationRows(Generic[R]):
    """The rows that one allocation answered with.

    Attributes:
        missing: descriptions of the processes that did not answer in time.
        left_out: those whose rows did not fit into the answer.
    """

    name: str
    rows: list[R]
    missing: list[str]
    left_out: list[str]

    @property
    def document(self) -> dict[str, object]:
        """The fields that all tables have in common."""
        return {"name": self.name, "missing": self.missing, "left_out": self.left_out}


@dataclass(frozen=True, slots=True)
class Question:
    """The processes that a command asks.

    Args:
        name: an allocation, or the directory of one; None for all live ones.
        run: the only run of interest; None for all.
    """

    name: str | None
    run: str | None
    config: Config
    output: Console

    def ask(self, table: Table[R]) -> list[AllocationRows[R]] | None:
        """Return the answers of the allocations that answer; None if there is no allocation.

        Raises:
            BadParameter: there is no such run.
        """
        from monarch_hpc.attach.tables.rows import query_rows

        output, targets = self.output, self.find_targets()
        answers = []
        where = {} if self.run is None else {"run": self.run}
        for target, directory in targets:
            found = query_rows(directory, table, _WAIT_S, where)
            if found is None:
                output.warn(f"{target}: its head does not answer")
                continue
            answers.append(AllocationRows(target, found.rows, found.missing, found.left_out))
        if not any(answer.rows for answer in answers):
            refuse_absent(targets, where)
        for answer in answers:
            for missing in answer.missing:
                output.warn(
                    f"{answer.name}: no answer from {missing} within {_WAIT_S:g} s: its {table.name} are not shown"
                )
            for source in answer.left_out:
                output.warn(
                    f"{answer.name}: the {table.name} of {source} are not shown: the answer would exceed "
                    "telemetry.max_answer_bytes; choose a run by --run, or raise the limit for the next allocation"
                )
        return answers if targets else None

    def find_targets(self) -> Sequence[tuple[str, Path]]:
        """Return name and directory of the allocations."""
        from monarch_hpc.attach.embedded import find_local
        from monarch_hpc.slurm.registry import Registry

        local = find_local()
        if self.name is not None:
            if "/" in self.name:
                return [(self.name, Path(self.name).absolute())]
            if self.name in local:
                return [(self.name, local[self.name])]
            record = Registry(self.config.paths.state).find(self.name)
            if record.ended is not None:
                raise AllocationError(record.name, f"has ended: {record.ended.state}: {record.ended.reason}")
            return [(record.name, record.directory)]
        records = [record for record in Registry(self.config.paths.state).records() if record.live]
        return [*((record.name, record.directory) for record in records), *local.items()]


def find_askable(
    name: str | None, job: int | None, config: Config, output: Console
) -> tuple[Sequence[Path], Sequence[Path]]:
    """Return the directories of allocations that live, and of those that have ended and may have kept records.

    Args:
        name: one of them, also if it has ended; None for all that live.
        job: the one with this Slurm job.

    Raises:
        AllocationError: there is none, or several had the same number of a job.
    """
    from monarch_hpc.slurm.registry import Registry

    if name is not None and job is not None:
        raise AllocationError(name, f"give a name or a job, not both, but job {job} is given, too")
    if name is None and job is None:
        return [directory for _, directory in Question(None, None, config, output).find_targets()], []
    if name is not None and "/" in name:
        directory = Path(name).absolute()
        return ([directory], []) if (directory / "key").exists() else ([], [directory])
    if name is not None and name in (local := _find_local()):
        return [local[name]], []
    registry = Registry(config.paths.state)
    if job is not None:
        records = [record for record in registry.records() if record.job_id == job]
        if len(records) > 1:  # Slurm counts from the start again
            ids = ", ".join(record.short_id for record in records)
            raise AllocationError(
                f"job {job}", f"several allocations had this number; choose one by --allocation: {ids}"
            )
        if not records:
            raise AllocationError(f"job {job}", "no allocation of this registry has or had this job")
        record = records[0]
    else:
        record = registry.find(name)
    return ([record.directory], []) if record.live else ([], [record.directory])


def _find_local() -> Mapping[str, Path]:
    from monarch_hpc.attach.embedded import find_local

    return find_local()
