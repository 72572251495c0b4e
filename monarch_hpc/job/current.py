"""The job that this directory works with, by name."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import FunctionType

from monarch_hpc.core.arguments import check_text
from monarch_hpc.core.files import open_folder, read_private, write_private
from monarch_hpc.job.trait import DEFAULT_JOB_PATH, JobTrait

__all__ = ["load_current_job", "set_current_job"]

_SPEC = Path(DEFAULT_JOB_PATH).with_name("spec")
_MAX_BYTES = 4 << 10
"""Of a dotted name."""

_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, also where an environment lies in the working folder."""


def set_current_job(module_path: str) -> None:
    """Say where the job of this directory is defined.

    Args:
        module_path: ``package.module.name`` of a job, of a class of jobs, or of a function that makes one, in a module
            below this directory.

    Raises:
        TypeError: not a string.
        ValueError: it names nothing in a module.
        ConfigError: ``.monarch`` is a link, or other users may write there.
    """
    check_text("module_path", module_path)
    if "." not in module_path.strip("."):
        raise ValueError(f"{module_path!r} names no job: write package.module.name")
    path = _SPEC.absolute()
    os.close(open_folder(path.parent, make=True))
    write_private(path, module_path.encode())


def load_current_job() -> JobTrait:
    """The job that `set_current_job` named, as it is defined: `JobTrait.state` attaches to it.

    Raises:
        FileNotFoundError: none was named in this directory.
        ConfigError: others may have written the name.
        TypeError: what it named is neither a job nor makes one, or is not a function of a module below this directory.
    """
    try:
        module_path = read_private(_SPEC.absolute(), _MAX_BYTES).decode(errors="replace").strip()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no {_SPEC} in {Path.cwd()}: name a job with set_current_job()") from error
    module, _, name = module_path.rpartition(".")
    # Not even imported: some modules of Python do things at that.
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise TypeError(f"{module_path} is Python's own, not a job; name one with set_current_job()")
    found: object = getattr(importlib.import_module(module), name)
    # The name may have come with the files of somebody else. It chooses among what this program's own folder offers for
    # it, and calls nothing that was installed for other ends.
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
