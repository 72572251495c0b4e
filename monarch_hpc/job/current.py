"""Which job this directory works with, by name."""

from __future__ import annotations

import importlib
from pathlib import Path

from monarch_hpc.core.arguments import check_text
from monarch_hpc.job.trait import DEFAULT_JOB_PATH, JobTrait

__all__ = ["load_current_job", "set_current_job"]

_SPEC = Path(DEFAULT_JOB_PATH).with_name("spec")


def set_current_job(module_path: str) -> None:
    """Say where the job of this directory is defined.

    Args:
        module_path: ``package.module.name`` of a job, or of a function that makes one.

    Raises:
        TypeError: not a string.
        ValueError: it names nothing in a module.
    """
    check_text("module_path", module_path)
    if "." not in module_path.strip("."):
        raise ValueError(f"{module_path!r} names no job: write package.module.name")
    _SPEC.parent.mkdir(parents=True, exist_ok=True)
    _SPEC.write_text(module_path)


def load_current_job() -> JobTrait:
    """The job that `set_current_job` named, as it is defined: `JobTrait.state` attaches to it.

    Raises:
        FileNotFoundError: none was named in this directory.
        TypeError: what it named is no job.
    """
    try:
        module_path = _SPEC.read_text().strip()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no {_SPEC} in {Path.cwd()}: name a job with set_current_job()") from error
    module, _, name = module_path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    job = found if isinstance(found, JobTrait) else found()
    if not isinstance(job, JobTrait):
        raise TypeError(f"{module_path} is a {type(job).__name__}, not a job")
    return job
