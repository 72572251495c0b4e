"""The root of the tree of errors, and the classes that belong to no branch."""

from __future__ import annotations

__all__ = ["ConfigError", "ForkedError", "InternalError", "LabError", "MonarchError", "QueryError"]


class MonarchError(Exception):
    """Base of all errors of this package.

    `exit_code` is the exit status of the command line; `retryable` is true if the same request may succeed later
    although nothing was changed.
    """

    exit_code = 1
    retryable = False


class ConfigError(MonarchError):
    """A configuration value cannot be used.

    Args:
        key: dotted key, e.g. ``paths.shared``; empty when the file itself is at fault.
        value: the value found, as text.
        source: its origin: ``file:line``, ``$VARIABLE`` or a flag.
        problem: what is wrong and what would be right.
    """

    exit_code = 65

    def __init__(self, key: str, value: str, source: str, problem: str) -> None:
        super().__init__(key, value, source, problem)
        self.key = key
        self.value = value
        self.source = source
        self.problem = problem

    def __str__(self) -> str:
        what = f"{self.key} = {self.value}: " if self.key else ""
        return f"{self.source}: {what}{self.problem}"


class ForkedError(MonarchError, RuntimeError):
    """This process was forked from one that uses monarch-hpc, and must not use the parent's connections and actors.

    Args:
        parent: process id of the parent.
    """

    def __init__(self, parent: int) -> None:
        super().__init__(parent)
        self.parent = parent

    def __str__(self) -> str:
        return (
            f"this process was forked from process {self.parent}, to which the allocation belongs: call actors there, "
            "or start a separate program with subprocess (or multiprocessing's 'spawn')"
        )


class LabError(MonarchError):
    """The Slurm lab on this machine (`monarch_hpc.testing.slurmlab`) cannot do what was asked.

    Args:
        lab: the lab's name or folder.
        problem: what is wrong and what to do.
    """

    def __init__(self, lab: str, problem: str) -> None:
        super().__init__(lab, problem)
        self.lab = lab
        self.problem = problem

    def __str__(self) -> str:
        return f"slurmlab '{self.lab}': {self.problem}"


class InternalError(MonarchError):
    """A bug in monarch-hpc."""

    exit_code = 70

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.problem}; this is a bug in monarch-hpc: please report it with the lines above"


class QueryError(MonarchError):
    """A question in SQL cannot be answered.

    Args:
        problem: what is wrong in it, where, and the nearest names.
    """

    exit_code = 65

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem
