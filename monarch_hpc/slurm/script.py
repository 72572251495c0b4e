"""Renders the batch script of an allocation from `sbatch_templates/alloc.sbatch`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from monarch_hpc.config import Config, FlagValue
from monarch_hpc.config.schema import AgentConfig, SlurmConfig
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.assets import asset
from monarch_hpc.slurm.commands.argv import flag_words, merge_options
from monarch_hpc.slurm.commands.salloc import salloc_flags

__all__ = [
    "HOOK_FAILED",
    "Group",
    "JoinedAllocation",
    "Request",
    "complete_tasks",
    "fill_template",
    "plan_group_flags",
    "plan_job_flags",
    "plan_site_flags",
    "quoted",
    "render_hook",
    "render_salloc",
    "render_script",
]

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
# Not `$`, which is the shell's own.
_PLACEHOLDER = re.compile(r"@\{(\w+)\}")
_SPECIAL = re.compile(r'(["\\$`])')


HOOK_FAILED = 72
"""Exit status of a batch script whose prologue or epilogue has failed; as of `JobFailed`."""

# Of the batch script, which runs in the first component only.
_SCRIPT_FLAGS = ("output", "signal")


@dataclass(frozen=True, slots=True)
class Group:
    """The hosts of one component of a heterogeneous job; its other fields are those of `Request`.

    Args:
        name: by which programs ask for its hosts.
    """

    name: str
    num_hosts: str = "1"
    gpus_per_node: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinedAllocation:
    """The living allocation that a further job joins.

    Args:
        allocation: its uuid.
        directory: its directory.
        attempt: the number of its attempt.
        first_rank: rank of the job's first host in it.
        replaces: see `AllocationRecord`.
    """

    allocation: str
    directory: Path
    attempt: int
    first_rank: int
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """The request for an allocation, or for a job that joins one.

    Args:
        allocation: its uuid, 32 hexadecimal digits.
        name: the name chosen by the user.
        directory: its private directory on the shared file system.
        num_hosts: number of hosts, as Slurm takes it (``4``, ``2-4``).
        gpus_per_node: GPUs on each host, as Slurm takes it (``4``, ``a100:4``); None for no such flag.
        options: sbatch options as the user wrote them; later ones win.
        groups: for a heterogeneous job, its components in their order; else empty. They take the place of the three
            fields before.
        joined: the allocation that it joins; None if it is one itself.
    """

    allocation: str
    name: str
    directory: Path
    num_hosts: str = "1"
    gpus_per_node: str | None = None
    options: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    joined: JoinedAllocation | None = None

    @property
    def size(self) -> str:
        """The number of hosts, of groups as a sum: ``1+2``."""
        return "+".join(group.num_hosts for group in self.groups) or self.num_hosts

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
    flags: dict[str, FlagValue] = {
        "job-name": request.job_name,
        "nodes": request.num_hosts,
        **plan_site_flags(config.slurm, request.gpus_per_node),
        "output": _output_pattern(request.directory / "slurm.out"),
        **config.slurm.job_flags,
    }
    return complete_tasks(config.slurm, merge_options(flags, (*config.slurm.extra, *request.options)))


def plan_group_flags(config: Config, request: Request) -> list[dict[str, FlagValue]]:
    """Return the flags of each component of a heterogeneous job; of any other, those of the job."""
    if not request.groups:
        return [plan_job_flags(config, request)]
    planned = [
        plan_job_flags(
            config,
            replace(request, num_hosts=group.num_hosts, gpus_per_node=group.gpus_per_node, options=group.options),
        )
        for group in request.groups
    ]
    rest = [{name: value for name, value in flags.items() if name not in _SCRIPT_FLAGS} for flags in planned[1:]]
    return [planned[0], *rest]


def plan_site_flags(slurm: SlurmConfig, gpus: str | None) -> dict[str, FlagValue]:
    """Return the flags of every job at this site, from the configuration; for a job with *gpus* on each host."""
    account = slurm.account
    if account and slurm.account_suffix and gpus is not None and not account.endswith(slurm.account_suffix):
        account += slurm.account_suffix
    return {
        "time": str(slurm.time_min),
        "partition": slurm.partition,
        "account": account,
        "qos": slurm.qos or (slurm.reservation_qos if slurm.reservation else None),
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "network": slurm.network,
        **_gpu_flags(slurm.gpus_form, gpus),
        "ntasks-per-node": None if slurm.ntasks == "none" else "1",
        "signal": f"B:USR2@{slurm.notice_s:.0f}",
    }


def complete_tasks(slurm: SlurmConfig, flags: dict[str, FlagValue]) -> dict[str, FlagValue]:
    """Add the number of tasks to all *flags* of a job, where the site wants it and the number of hosts is known."""
    nodes = flags.get("nodes")
    if slurm.ntasks == "both" and isinstance(nodes, str) and nodes.isdecimal():
        flags.setdefault("ntasks", nodes)
    return flags


def render_script(config: Config, request: Request) -> str:
    """Return the batch script exactly as it is submitted."""
    components = (
        "\n".join(f"#SBATCH {quoted(word)}" for word in flag_words(flags))
        for flags in plan_group_flags(config, request)
    )
    joined = request.joined or JoinedAllocation(request.allocation, request.directory, 0, 0)
    values = {
        "batch_flags": "\n#SBATCH hetjob\n".join(components),
        "home": quoted(str(joined.directory)),
        "home_attempt": str(joined.attempt) if joined.attempt else "$attempt",
        "first_rank": str(joined.first_rank),
        "name": request.name if request.name.isprintable() else repr(request.name),
        "directory": quoted(str(request.directory)),
        "groups": " ".join(quoted(group.name) for group in request.groups),
        "variables": "\n".join(_defaults(config.agent.env)) or "# (none)",
        "prologue": render_hook(config.agent, "prologue"),
        "epilogue": render_hook(config.agent, "epilogue"),
        "prefix": "".join(f"{quoted(word)} " for word in config.agent.prefix),
        "step_flags": "\n    ".join(quoted(word) for word in flag_words(config.slurm.step_flags)),
        "python": quoted(config.agent.python),
        "allocation": joined.allocation,
    }
    return fill_template("alloc.sbatch", values)


def render_salloc(config: Config, request: Request) -> str:
    """Return the script that holds the allocation by salloc, on the login node.

    Raises:
        ConfigError: the request has several groups, of which steps from outside know the first one only.
    """
    if request.groups:
        problem = "takes one group of hosts; an allocation of several is a batch job"
        raise ConfigError("slurm.allocate_by", "salloc", "configuration", problem)
    flags = salloc_flags(plan_job_flags(config, request))
    values = {
        "name": request.name if request.name.isprintable() else repr(request.name),
        "directory": quoted(str(request.directory)),
        "flags": "\n    ".join(quoted(word) for word in flag_words(flags)),
        "output": quoted(_output_pattern(request.directory / "slurm.out")),
    }
    return fill_template("salloc.sh", values)


def render_hook(agent: AgentConfig, name: str) -> str:
    """Return the shell lines of a hook, ``prologue`` or ``epilogue``; if they fail, the script ends with `HOOK_FAILED`.

    They run in the script's own shell, whose environment a prologue is to change. A command of theirs that fails is
    named; so is the limit of their time, at which all processes of the script's group get SIGALRM.
    """
    lines = agent.prologue if name == "prologue" else agent.epilogue
    if not lines:
        return "# (nothing)"
    limit = math.ceil(agent.hook_s)
    failed = f'echo "monarch-hpc: agent.{name} failed with status $?: $BASH_COMMAND" >&2'
    late = f'echo "monarch-hpc: agent.{name} took longer than {limit} s (config key agent.hook_s)" >&2'
    return "\n".join(
        (
            f"trap '{failed}; exit {HOOK_FAILED}' ERR",
            f"trap '{late}; exit {HOOK_FAILED}' ALRM",
            # In short sleeps: one that is left behind ends soon.
            f"{{ for ((left = {limit}; left; left--)); do",
            "    sleep 1",
            "    kill -0 $$ 2> /dev/null || exit",
            "done; kill -ALRM 0; } &",
            "watch=$!",
            *lines,
            "trap - ERR",
            # Not SIGTERM: a subshell that gets that as it starts runs the EXIT trap of this script.
            'kill -KILL "$watch"',
            'wait "$watch" 2> /dev/null',
            "trap - ALRM",
        )
    )


def fill_template(name: str, values: Mapping[str, str]) -> str:
    """Return a template of `sbatch_templates` with its placeholders replaced."""
    template = asset("sbatch_templates", name).read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def _defaults(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield shell lines that set *variables*, but leave those that are set, even to nothing."""
    for name, value in variables.items():
        yield f'[ -n "${{{name}+set}}" ] || export {name}={quoted(value)}'


def _gpu_flags(form: str, gpus: str | None) -> Mapping[str, FlagValue]:
    if gpus is None or form == "none":
        return {}
    return {"gres": f"gpu:{gpus}"} if form == "gres" else {"gpus-per-node": gpus}


def _output_pattern(path: Path) -> str:
    """Return a Slurm file name pattern that matches only *path*."""
    if "\\" in str(path):
        raise ConfigError("paths.shared", str(path.parent.parent), "configuration", "must not contain a backslash")
    return str(path).replace("%", "%%")
