"""Stacks of procs: reads what py-spy writes, and folds equal stacks of many procs. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.stacks import ThreadStack

__all__ = ["StackGroup", "fold_stacks", "parse_stacks", "without_stack"]

_MAX_THREADS = 256
_MAX_FRAMES = 128
_MAX_NAME = 200
"""Limits on what one proc can add to an answer: names come from its program."""

_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_LIBRARY = str(Path(os.__file__).parent) + os.sep


def parse_stacks(text: str | bytes, process: RunProcess, *, native: bool) -> list[ThreadStack]:
    """Return the threads in the output of ``py-spy dump --json --full-filenames``.

    Raises:
        ValueError: it is something else.
    """
    try:
        return [_thread(thread, process, native) for thread in json.loads(text)[:_MAX_THREADS]]
    except (AttributeError, IndexError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _thread(thread: Mapping[str, Any], process: RunProcess, native: bool) -> ThreadStack:
    frames = thread["frames"][:_MAX_FRAMES]
    lines = [f"{Path(frame['filename']).name}:{frame['line']}" for frame in frames]
    words = [_word(f"{frame['name']} ({line})") for frame, line in zip(frames, lines, strict=True)]
    return ThreadStack(
        *process.first_columns,
        thread=int(thread["os_thread_id"] or 0),
        thread_name=_word(thread["thread_name"] or ""),
        native=native,
        owns_gil=bool(thread["owns_gil"]),
        active=bool(thread["active"]),
        program=any(_of_program(frame) for frame in frames),
        function=_word(frames[0]["name"]) if frames else "",
        line=_word(lines[0]) if frames else "",
        stack=";".join(reversed(words)),
        problem="",
    )


def without_stack(process: RunProcess, problem: str, *, native: bool) -> ThreadStack:
    """Return the row of a proc whose stacks cannot be read."""
    return ThreadStack(*process.first_columns, 0, "", native, False, False, False, "", "", "", problem)


def _word(text: str) -> str:
    """Limit the length of a name, and keep it apart from others in a stack."""
    return text.replace(";", ",")[:_MAX_NAME]


def _of_program(frame: Mapping[str, Any]) -> bool:
    file = frame["filename"]
    if frame["module"] or file.startswith(("<frozen", _PACKAGE)):  # a module is a native library
        return False
    return not file.startswith(_LIBRARY) or "-packages" in file


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Threads with the same stack.

    Attributes:
        frames: its functions, innermost first; none for procs that run no code of the program.
        threads: one for each thread, by mesh and rank.
        num_procs: number of procs that they belong to.
    """

    frames: list[str]
    threads: Sequence[ThreadStack]
    num_procs: int


def fold_stacks(rows: Iterable[ThreadStack], *, everything: bool = False) -> list[StackGroup]:
    """Return the stacks of procs, equal ones once, those of the fewest procs first.

    Args:
        everything: include threads that run no code of the program; without them, procs that have no other threads are
            a group without a stack.
    """
    by_stack: dict[str, list[ThreadStack]] = {}
    by_proc: dict[tuple[str, int, int, str, int], list[ThreadStack]] = {}
    for row in rows:
        by_proc.setdefault(_key(row), []).append(row)
    for threads in by_proc.values():
        chosen = [one for one in threads if one.program or everything]
        for one in chosen:
            by_stack.setdefault(one.stack, []).append(one)
        if not chosen:
            by_stack.setdefault("", []).append(min(threads, key=lambda one: one.thread))
    groups = [
        StackGroup(
            [*reversed(stack.split(";"))] if stack else [],
            sorted(threads, key=lambda one: (*_key(one), one.thread)),
            len({_key(one) for one in threads}),
        )
        for stack, threads in by_stack.items()
    ]
    return sorted(groups, key=lambda group: (group.num_procs, _key(group.threads[0]), group.frames))


def _key(row: ThreadStack) -> tuple[str, int, int, str, int]:
    return row.run, row.mesh, row.rank, row.host, row.pid
