"""The user's list of bad hosts, which new allocations exclude: a file for each, with reason and time.

    <state>/excluded/<host>.json

Each file is written whole and removed whole, so that commands at the same time on several login nodes lose nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.config import Config, FlagValue
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import private_dir, read_json, write_json
from monarch_hpc.core.text.hostlist import compress, expand

__all__ = ["Exclusion", "Exclusions", "exclude_bad_hosts"]

_SCHEMA = 1
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One host on the list.

    Args:
        host: its name.
        reason: for people.
        at_s: when it was put on the list, in seconds since the epoch.
    """

    host: str
    reason: str
    at_s: float


class Exclusions:
    """The list below one state folder.

    Args:
        state: config key `paths.state`.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._folder = state / "excluded"

    def all(self) -> list[Exclusion]:
        """Return the list, by name; files that are no entries of it are left out."""
        found: list[Exclusion] = []
        # A look makes no folder: a dry run leaves nothing behind.
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        for name in sorted(names):
            host = name.removesuffix(".json")
            if name != host and _HOST.fullmatch(host):
                found += self._read(host)
        return found

    def add(self, host: str, reason: str, now_s: float) -> None:
        """Put a host on the list, or give it another reason.

        Raises:
            ConfigError: not a name of a host.
        """
        if not _HOST.fullmatch(host):
            raise ConfigError("HOST", repr(host), "command line", "is not the name of a host")
        private_dir(private_dir(self._state) / "excluded")
        write_json(self._folder / f"{host}.json", {"schema": _SCHEMA, "reason": reason, "at_s": now_s})

    def remove(self, host: str) -> bool:
        """Take a host off the list; return whether it was on it."""
        if not _HOST.fullmatch(host):
            return False
        try:
            (self._folder / f"{host}.json").unlink()
        except FileNotFoundError:
            return False
        return True

    def _read(self, host: str) -> list[Exclusion]:
        try:
            document = read_json(self._folder / f"{host}.json")
        except FileNotFoundError:
            return []  # it was just taken off
        if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
            return []
        at_s = document.get("at_s")
        return [Exclusion(host, str(document.get("reason", "")), at_s if isinstance(at_s, int | float) else 0.0)]


def exclude_bad_hosts(config: Config, flags: Mapping[str, FlagValue]) -> tuple[tuple[str, ...], list[Exclusion]]:
    """Return the sbatch options that exclude the listed hosts from a job, in addition to those that it excludes itself.

    Hosts that it names with ``--nodelist`` are the user's choice. Where the site forbids to exclude hosts
    (`slurm.exclude_allowed`) there are no options, and the list is returned all the same.

    Args:
        flags: flags of the job, by name.
    """
    listed = Exclusions(config.paths.state).all()
    wanted, excluded = (_hosts(flags.get(flag)) for flag in ("nodelist", "exclude"))
    if wanted is None or excluded is None:
        return (), listed  # Slurm's own file of hosts: left to the user
    bad = [one for one in listed if one.host not in wanted]
    if not bad or not config.slurm.exclude_allowed:
        return (), bad
    hosts = compress(dict.fromkeys([*excluded, *(one.host for one in bad)]))
    return (f"--exclude={hosts}",), bad


def _hosts(value: object) -> list[str] | None:
    """Return the hosts of a flag; None if it names a file, as Slurm also allows."""
    if not isinstance(value, str) or not value:
        return []
    return None if "/" in value else expand(value)
