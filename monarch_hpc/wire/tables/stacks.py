"""The table of stacks: the functions that the threads of procs stand in at the moment."""

from __future__ import annotations

from typing import Annotated

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.schema import Table

__all__ = ["STACKS", "ThreadStack"]


@dataclass(frozen=True, slots=True)
class ThreadStack(RunProcess):
    """One thread of a proc."""

    thread: Annotated[int, "id of the thread in the kernel; 0 in a row that has a problem"]
    thread_name: Annotated[str, "name of the thread"]
    native: Annotated[bool, "whether frames of native code were asked for; a proc that is stopped has none"]
    owns_gil: Annotated[bool, "whether it holds the interpreter's lock"]
    active: Annotated[bool, "whether it computes, rather than waits"]
    program: Annotated[bool, "whether it runs code of the program, and not only of this package and Python's library"]
    function: Annotated[str, "innermost function"]
    line: Annotated[str, "its file and line"]
    stack: Annotated[str, "all its functions, as `function (file:line)`, innermost last, separated by `;`"]
    problem: Annotated[str, "why there is no stack; empty if there is one"]


STACKS = Table("stacks", ThreadStack, "Stacks of the threads of procs, each of which py-spy reads for the question.")
