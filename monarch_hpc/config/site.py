"""Profiles of sites, and the choice of this site's, without asking slurmctld."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeGuard

from monarch_hpc.config.schema import SITE_ONLY
from monarch_hpc.config.setting import Setting
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError

__all__ = ["Profile", "choose_profile", "find_cluster_name", "head_of", "parse_profile"]

# Slurm's own search path; the second is the copy that a "configless" slurmd or sackd fetched.
_SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")


@dataclass(frozen=True)
class Profile:
    """The description of one site.

    Args:
        name: the value of its key `site`.
        checked: when its values were last compared with the site.
        source: what they were compared with.
        environment: variable -> wildcards, one of which must match; so for all variables.
        clusters: wildcards for Slurm's ClusterName.
        hostnames: wildcards for this machine's name.
        settings: its settings; those of the head only if just that was parsed.
    """

    name: str
    checked: datetime.date
    source: str
    environment: Mapping[str, Sequence[str]]
    clusters: Sequence[str]
    hostnames: Sequence[str]
    settings: Sequence[Setting]


def head_of(text: str) -> str:
    """Return the head of a profile's text, up to its first empty line: name, date, source and rules.

    A command parses the heads of all profiles, and the rest of one.
    """
    return text.partition("\n\n")[0] + "\n"


def parse_profile(settings: Sequence[Setting], source: str) -> Profile:
    """Make a profile from a site file's settings."""
    by_key = {setting.key: setting for setting in settings}
    for key in ("site", "checked", "source", "match"):
        if key not in by_key:
            raise ConfigError(
                key,
                "(missing)",
                source,
                "a profile begins, before its first empty line, with site (its name), checked (the date of its check), "
                "source (what it was checked against) and match (a rule to recognise the site)",
            )
    checked, told = by_key["checked"].value, by_key["source"].value
    if not isinstance(checked, datetime.date):
        raise ConfigError("checked", repr(checked), by_key["checked"].origin, "must be a date")
    if not isinstance(told, str) or not told.strip() or not told.isprintable():
        raise ConfigError("source", repr(told), by_key["source"].origin, "must be a line of text")
    match = by_key["match"]
    rules = match.value if isinstance(match.value, Mapping) else {"": match.value}
    environment, clusters, hostnames = rules.get("environment", {}), rules.get("cluster", []), rules.get("hostname", [])
    wrong = ConfigError(
        "match",
        repr(match.value),
        match.origin,
        "must be {environment: {VARIABLE: value or [values]}, cluster: [names], hostname: [names]}, any of these",
    )
    if set(rules) - {"environment", "cluster", "hostname"} or not isinstance(environment, Mapping):
        raise wrong
    values = {name: [value] if isinstance(value, str) else value for name, value in environment.items()}
    if not _texts([*values]) or not all(map(_texts, values.values())):
        raise wrong
    if not _texts(clusters) or not _texts(hostnames):
        raise wrong
    rest = [setting for setting in settings if setting.key not in SITE_ONLY]
    return Profile(str(by_key["site"].value), checked, told, values, clusters, hostnames, rest)


def choose_profile(
    profiles: Sequence[Profile], environ: Mapping[str, str], hostname: str, cluster_name: str | None
) -> Profile | None:
    """Return the profile of this site; None if no profile matches.

    A variable set by the site is the strongest evidence, the name of a login node the weakest; the first kind of rule
    with a match decides.

    Raises:
        ConfigError: two profiles match by the same kind of rule.
    """
    kinds = (
        [p for p in profiles if p.environment and _environment_matches(p.environment, environ)],
        [p for p in profiles if cluster_name is not None and _any_matches(p.clusters, cluster_name)],
        [p for p in profiles if _any_matches(p.hostnames, hostname)],
    )
    for matching in kinds:
        if len(matching) > 1:
            names = ", ".join(profile.name for profile in matching)
            raise ConfigError("site", names, "configs/sites", "several profiles match; set MONARCH_HPC_SITE to one")
        if matching:
            return matching[0]
    return None


def find_cluster_name(environ: Mapping[str, str], slurm_confs: Sequence[str] = _SLURM_CONFS) -> str | None:
    """Return Slurm's ClusterName from the environment or slurm.conf; no command is run.

    Files included by slurm.conf are not read: if one of them sets the name, the profile needs other rules.
    """
    if name := environ.get("SLURM_CLUSTER_NAME"):
        return name
    for path in [environ["SLURM_CONF"]] if environ.get("SLURM_CONF") else slurm_confs:
        try:
            text = Path(path).read_text(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            key, _, value = line.partition("#")[0].partition("=")
            if key.strip().lower() == "clustername":
                return value.strip() or None
        return None
    return None


def _environment_matches(rules: Mapping[str, Sequence[str]], environ: Mapping[str, str]) -> bool:
    return all(name in environ and _any_matches(wanted, environ[name]) for name, wanted in rules.items())


def _any_matches(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)
