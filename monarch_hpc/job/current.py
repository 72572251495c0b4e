"""The current job of the working directory, stored by name."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import FunctionType

from monarch_hpc.core.arguments import check_text
from monarch_hpc.core.storage.files import open_folder, read_private, write_private
from monarch_hpc.job.trait import DEFAULT_JOB_PATH, JobTrait

__all__ = ["load_current_job", "set_current_job"]

_SPEC = Path(DEFAULT_JOB_PATH).with_name("spec")
_MAX_BYTES = 4 << 10
"""Size limit of the file with the dotted name."""

_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, which a virtual environment may place inside the working directory."""


def set_current_job(module_path: str) -> None:
    """Set the current job of the working directory, by the place of its definition.

    Args:
        module_path: ``package.module.name`` of a job, of a class of jobs, or of a function that returns a job; such a
            function must be in a module below this directory.

    Raises:
        TypeError: *module_path* is not a string.
        ValueError: *module_path* has no module.
        ConfigError: ``.monarch`` is a link, or other users may write there.
    """
    check_text("module_path", module_path)
    if "." not in module_path.strip("."):
        raise ValueError(f"{module_path!r} does not name a job: write package.module.name")
    path = _SPEC.absolute()
    os.close(open_folder(path.parent, make=True))
    write_private(path, module_path.encode())


def load_current_job() -> JobTrait:
    """Load the job that `set_current_job` named, as it is defined; `JobTrait.state` then attaches to it.

    Raises:
        FileNotFoundError: no job was named in this directory.
        ConfigError: other users may have written the name.
        AttributeError, ImportError: there is no such name or module.
        TypeError: the name is not that of a job, of a class of jobs, or of a function that returns a job in a module
            below this directory.
    """
    try:
        module_path = read_private(_SPEC.absolute(), _MAX_BYTES).decode(errors="replace").strip()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no {_SPEC} in {Path.cwd()}: name a job with set_current_job()") from error
    module, _, name = module_path.rpartition(".")
    # Not even imported: importing some modules of the standard library has effects.
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise TypeError(f"{module_path} is Python's own, not a job; name one with set_current_job()")
    found: object = getattr(importlib.import_module(module), name)
    # The name may come with another user's files. So it can select jobs, classes of jobs, and functions of the working
    # directory, but cannot have a function of an installed package called.
    job: object = found
    if (isinstance(found, type) and issubclass(found, JobTrait)) or (
        isinstance(found, FunctionType) and _is_below(found, Path.cwd())
    ):
        job = found()
    if not isinstance(job, JobTrait):
        what = f"is a {type(job).__name__}, not a job, a class of jobs, or a function of a module below {Path.cwd()}"
        raise TypeError(f"{module_path} {what} that makes one")
    return job


def _is_below(function: FunctionType, folder: Path) -> bool:
    source = Path(os.path.realpath(str(function.__globals__.get("__file__", "/"))))
    folder = folder.resolve()
    return source.is_relative_to(folder) and _INSTALLED.isdisjoint(source.relative_to(folder).parts)
