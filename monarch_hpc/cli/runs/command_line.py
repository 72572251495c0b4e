"""The command line of a program, from what the user names."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass

__all__ = ["Missing", "plan_argv"]

_EXIT_NO_SCRIPT = 66  # EX_NOINPUT of sysexits.h
_EXIT_NOT_EXECUTABLE, _EXIT_NOT_FOUND = 126, 127  # as in shells


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a program cannot be started."""

    kind: str
    sentence: str
    exit_code: int


def plan_argv(program: Sequence[str], *, plain: bool) -> list[str] | Missing:
    """Return the command line to start, or the reason why it cannot be started."""
    first = program[0]
    if plain:
        found = shutil.which(first)
        if found is not None:
            return list(program)
        if os.path.exists(first):
            return Missing("CommandNotExecutable", f"'{first}' is not executable", _EXIT_NOT_EXECUTABLE)
        return Missing("CommandNotFound", f"command '{first}' is not found on PATH", _EXIT_NOT_FOUND)
    if not first:
        return Missing("ScriptNotFound", "the name of the script is empty; is a variable unset?", _EXIT_NO_SCRIPT)
    path = Path(first)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else f"is not found in {Path.cwd()}"
        hint = f"; to run a command write 'run -- {first}'" if shutil.which(first) else ""
        return Missing("ScriptNotFound", f"script '{first}' {what}{hint}", _EXIT_NO_SCRIPT)
    if path.suffix != ".py" and os.access(path, os.X_OK):
        return [str(path.absolute()), *program[1:]]
    return [sys.executable, *program]
