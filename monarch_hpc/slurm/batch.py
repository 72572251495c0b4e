"""Batch jobs of programs: renders a script that people can read, keep and submit by hand, and submits it."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from monarch_hpc.config import Config, FlagValue
from monarch_hpc.config.program import without_program
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.checks.site_rules import check_place
from monarch_hpc.slurm.commands.argv import flag_words, merge_options
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.commands.through_client import open_slurm
from monarch_hpc.slurm.requeue import check_chaining
from monarch_hpc.slurm.script import complete_tasks, fill_template, plan_site_flags, quoted, render_hook

__all__ = ["BatchRequest", "batch_client", "plan_batch_flags", "render_batch", "render_function", "submit_batch"]

_OURS = {
    "parsable": "it is always set",
    "test-only": "use --dry-run to see the script, and 'sbatch --test-only' with it",
    "wait": "the command returns when the job is submitted; 'sbatch --wait' takes the file of --output-script",
    "wrap": "the script is ours",
}


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The request for a batch job.

    Args:
        program: the arguments of `monarch-hpc run` in the job.
        name: the job's name.
        folder: the working directory of the job.
        num_hosts: number of hosts, as Slurm takes it (``4``, ``2-4``).
        gpus_per_node: GPUs on each host, as Slurm takes it; None for no such flag.
        array: indices of an array of jobs, as Slurm takes them; None for one job.
        dependency: what the job waits for, as Slurm takes it; None for nothing.
        requeues: number of times that the program may start again after the time limit; 0 for never.
        options: sbatch options as the user wrote them; later ones win.
        dropped: names of flags, without dashes, that are left out.
    """

    program: tuple[str, ...]
    name: str
    folder: Path
    num_hosts: str = "1"
    gpus_per_node: str | None = None
    array: str | None = None
    dependency: str | None = None
    requeues: int = 0
    options: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def plan_batch_flags(config: Config, request: BatchRequest) -> dict[str, FlagValue]:
    """Return the flags of the job, in the order in which they are shown; later sources win, as in `plan_job_flags`.

    Raises:
        ConfigError: an option is not one of sbatch, or there is no such flag to leave out; or the site forbids it that
            jobs start again in this queue.
    """
    slurm = config.slurm
    flags: dict[str, FlagValue] = {
        "job-name": request.name,
        "nodes": request.num_hosts,
        **plan_site_flags(slurm, request.gpus_per_node),
        "array": request.array,
        "dependency": request.dependency,
        "chdir": str(request.folder),
        "output": "%x-%A_%a.out" if request.array else "%x-%j.out",
        # A job that starts again must not erase what its first start has printed.
        "open-mode": "append",
        **slurm.job_flags,
    }
    if request.requeues:
        flags = {name: value for name, value in flags.items() if name != "no-requeue"} | {"requeue": True}
    merged = complete_tasks(slurm, merge_options(flags, (*slurm.extra, *request.options), refused=_OURS))
    if request.requeues:
        check_chaining(config.limits, str(merged.get("partition")), str(merged.get("qos")), request.name)
    return _without(merged, request.dropped)


def render_batch(config: Config, request: BatchRequest) -> str:
    """Return the batch script exactly as it is submitted."""
    flags = plan_batch_flags(config, request)
    return fill_template(
        "run.sbatch",
        {
            "batch_flags": "\n".join(f"#SBATCH {quoted(word)}" for word in flag_words(flags)),
            "prologue": render_hook(config.agent, "prologue"),
            "requeues": str(request.requeues),
            "python": shlex.quote(config.agent.python),
            # Not `quoted`: these words are for the shell alone, and may contain line breaks.
            "program": " ".join(shlex.quote(word) for word in request.program),
        },
    )


def batch_client(config: Config, environ: Mapping[str, str]) -> SlurmClient:
    """Return Slurm's commands for a job that is not part of the program that asks for it.

    Raises:
        ConfigError: the site takes no jobs from this machine.
        SlurmMissing: there is no sbatch.
    """
    slurm = open_slurm(config, without_program(environ))
    check_place(config, slurm)
    slurm.require("sbatch")
    return slurm


def render_function(config: Config, request: BatchRequest, folder: Path) -> str:
    """Return the batch script of a function that submitit has pickled in *folder*; *request* has no program."""
    flags = plan_batch_flags(config, request)
    return fill_template(
        "function.sbatch",
        {
            "batch_flags": "\n".join(f"#SBATCH {quoted(word)}" for word in flag_words(flags)),
            "prologue": render_hook(config.agent, "prologue"),
            "python": shlex.quote(config.agent.python),
            "folder": shlex.quote(str(folder)),
        },
    )


def submit_batch(config: Config, request: BatchRequest, slurm: SlurmClient, text: str | None = None) -> int:
    """Submit the job and return its number.

    Args:
        text: its script; None for that of `render_batch`.

    Raises:
        SlurmBusy: slurmctld did not answer; the job may or may not exist.
        SlurmCommandError: Slurm refused; no job exists.
    """
    flags = {name: str(value) for name, value in plan_batch_flags(config, request).items() if value}
    with tempfile.TemporaryDirectory(prefix="monarch-hpc-") as folder:
        script = Path(folder, "run.sbatch")
        script.write_bytes(os.fsencode(render_batch(config, request) if text is None else text))
        return slurm.submit(script, flags)  # sbatch has read the script when it returns


def _without(flags: Mapping[str, FlagValue], dropped: Collection[str]) -> dict[str, FlagValue]:
    unknown = [name for name in dropped if flags.get(name) in (None, False)]
    if unknown:
        known = ", ".join(name for name, value in flags.items() if value not in (None, False))
        raise ConfigError("", unknown[0], "--drop", f"the script has no such line; it has: {known}")
    return {name: value for name, value in flags.items() if name not in dropped}
