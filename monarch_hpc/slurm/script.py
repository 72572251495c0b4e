"""Renders the batch script of an allocation from `sbatch_templates/alloc.sbatch`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.config import Config, FlagValue
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.assets import asset
from monarch_hpc.slurm.argv import flag_words, merge_options

__all__ = ["Request", "plan_job_flags", "quoted", "render_script"]

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
# Not `$`, which is the shell's own.
_PLACEHOLDER = re.compile(r"@\{(\w+)\}")
_SPECIAL = re.compile(r'(["\\$`])')


@dataclass(frozen=True, slots=True)
class Request:
    """The request for an allocation.

    Args:
        allocation: its uuid, 32 hexadecimal digits.
        name: the name chosen by the user.
        directory: its private directory on the shared file system.
        num_hosts: number of hosts, as Slurm takes it (``4``, ``2-4``).
        gpus_per_node: GPUs on each host, as Slurm takes it (``4``, ``a100:4``); None for no such flag.
        options: sbatch options as the user wrote them; later ones win.
    """

    allocation: str
    name: str
    directory: Path
    num_hosts: str = "1"
    gpus_per_node: str | None = None
    options: tuple[str, ...] = ()

    @property
    def job_name(self) -> str:
        """The unique name of the Slurm job."""
        return f"mh-{self.allocation[:8]}"


def quoted(text: str) -> str:
    """Return *text* as one word for the shell and for sbatch's own parser of #SBATCH lines.

    Both accept a backslash before these four characters within double quotes, but treat single quotes differently.

    Raises:
        ConfigError: *text* contains a line break or another control character, which an #SBATCH line cannot contain.
    """
    if not text.isprintable():
        raise ConfigError("", repr(text), "batch script", "contains a line break or another control character")
    if _PLAIN.fullmatch(text):
        return text
    return '"' + _SPECIAL.sub(r"\\\1", text) + '"'


def plan_job_flags(config: Config, request: Request) -> dict[str, FlagValue]:
    """Return the flags of the job, in the order in which they are shown.

    Later sources win: the request's fields and the configuration's keys, `slurm.job_flags`, `slurm.extra`, the
    request's options.
    """
    slurm = config.slurm
    flags: dict[str, FlagValue] = {
        "job-name": request.job_name,
        "nodes": request.num_hosts,
        "time": str(slurm.time_min),
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        **_gpu_flags(slurm.gpus_form, request.gpus_per_node),
        "output": _output_pattern(request.directory / "slurm.out"),
    }
    return merge_options({**flags, **slurm.job_flags}, (*slurm.extra, *request.options))


def render_script(config: Config, request: Request) -> str:
    """Return the batch script exactly as it is submitted."""
    values = {
        "batch_flags": "\n".join(f"#SBATCH {quoted(word)}" for word in flag_words(plan_job_flags(config, request))),
        "name": request.name if request.name.isprintable() else repr(request.name),
        "directory": quoted(str(request.directory)),
        "prologue": "\n".join(config.agent.prologue) or "# (nothing)",
        "step_flags": " \\\n    ".join(quoted(word) for word in flag_words(config.slurm.step_flags)),
        "python": quoted(config.agent.python),
        "allocation": request.allocation,
    }
    template = asset("sbatch_templates", "alloc.sbatch").read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def _gpu_flags(form: str, gpus: str | None) -> Mapping[str, FlagValue]:
    if gpus is None or form == "none":
        return {}
    return {"gres": f"gpu:{gpus}"} if form == "gres" else {"gpus-per-node": gpus}


def _output_pattern(path: Path) -> str:
    """Return a Slurm file name pattern that matches only *path*."""
    if "\\" in str(path):
        raise ConfigError("paths.shared", str(path.parent.parent), "configuration", "must not contain a backslash")
    return str(path).replace("%", "%%")
