"""The rules of the site's profile that Slurm would enforce late, in other words, or by deleting the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.config import Config, FlagValue
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.commands.client import SlurmClient

__all__ = ["check_place", "check_site_rules", "limits_in_words"]

_OPTIONS = {"account": "-A", "partition": "-p", "qos": "-q", "time": "-t", "constraint": "-C"}


def check_site_rules(config: Config, flags: Mapping[str, FlagValue], home: Path) -> list[str]:
    """Check a job against the profile, and return warnings for the user.

    Args:
        flags: flags of the job, by name.
        home: the user's home directory.

    Raises:
        ConfigError: the site would refuse the job, or its hosts could not write into the allocation's directory.
    """
    slurm, paths, site = config.slurm, config.paths, config.site
    missing = [name for name in slurm.required if not flags.get(name)]
    if missing:
        options = ", ".join(f"--{name} ({_OPTIONS[name]})" for name in missing)
        raise ConfigError(f"slurm.{missing[0]}", "not set", f"site {site}", f"jobs here need {options}")
    for flag, allowed in (("nodelist", slurm.nodelist_allowed), ("exclude", slurm.exclude_allowed)):
        if not allowed and flags.get(flag):
            problem = (
                f"jobs here may not ask for hosts by name, drop --{flag}; config key slurm.{flag}_allowed permits it"
            )
            raise ConfigError(f"slurm.{flag}_allowed", "false", f"site {site}", problem)
    if paths.home_on_compute != "rw" and paths.shared.is_relative_to(home):
        seen = "is not mounted" if paths.home_on_compute == "none" else "is read-only"
        problem = (
            f"is in {home}, which {seen} on compute nodes; set it to a folder that login and compute nodes can write"
        )
        raise ConfigError("paths.shared", str(paths.shared), f"site {site}", problem)
    return [*_time_warning(config, flags)]


def check_place(config: Config, slurm: SlurmClient) -> None:
    """Refuse to ask for a job on a compute node if the site takes none from there, and no client passes it on.

    Raises:
        ConfigError: it is on a compute node, and the site takes no jobs from there.
    """
    if why := slurm.why_no_jobs():
        raise ConfigError("login.submit_from_compute", "false", f"site {config.site}", why)


def limits_in_words(message: str, config: Config, flags: Mapping[str, FlagValue]) -> str:
    """Return the site's number of jobs for a refusal or reason of Slurm that is about them; empty if unknown.

    Args:
        message: Slurm's words.
        flags: flags of the job; the limits are looked up by its QOS, then by its partition.
    """
    if re.search(r"(QOS|Assoc)Max(Submit)?Job", message) is None:
        return ""
    kind, numbers = (
        ("in the queue", config.limits.submitted) if "Submit" in message else ("running", config.limits.running)
    )
    for flag in ("qos", "partition"):
        name = flags.get(flag)
        if isinstance(name, str) and name in numbers:
            return f"{name} allows {numbers[name]} of a user's jobs {kind}, says the profile of {config.site}"
    return ""


def _time_warning(config: Config, flags: Mapping[str, FlagValue]) -> list[str]:
    nodes, time_min = flags.get("nodes"), flags.get("time")
    if not (isinstance(nodes, str) and isinstance(time_min, str) and time_min.isdecimal()):
        return []
    first = re.match(r"\d+", nodes)
    bins = sorted((int(num), limit_min) for num, limit_min in config.slurm.time_by_nodes.items())
    here = [limit_min for num, limit_min in bins if first is not None and num <= int(first[0])]
    if not here or int(time_min) <= here[-1]:
        return []
    longer = next((num for num, limit_min in bins if limit_min >= int(time_min)), None)
    advice = "" if longer is None else f", and {time_min} min from {longer} hosts on"
    return [f"{config.site} allows {here[-1]} min for {nodes} hosts{advice}; Slurm may refuse --time={time_min}"]
