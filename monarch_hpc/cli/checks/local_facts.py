"""Findings about folders, quotas, munge and the versions of packages. Pure: the facts are arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from monarch_hpc.cli.checks.findings import Finding, Severity
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.text.units import format_size

__all__ = ["PACKAGES", "Folder", "LocalFacts", "compare_versions", "examine_local"]

PACKAGES = ("cloudpickle", "torch", "libucx-cu12")
"""Packages whose versions both sides should share: values are pickled by one and unpickled by the other."""

# Sockets, scripts of batch jobs and unpacked packages; less makes pip and torch's compiler fail first.
_TMP_LEAST_BYTES = 1 << 30
# On a file system this full, the next write is likely to fail.
_SHARED_LEAST_BYTES = 256 << 20
_LEAST_FILES = 1000


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, or the nearest existing one above it.

    Args:
        num_free_files: files that can still be made; None if the file system sets no limit.
        in_memory: whether its files take the memory of the machine, and so of the job.
        runs: whether programs in it can be run.
        problem: why it cannot be written; empty if it can.
    """

    path: str
    free_bytes: int
    num_free_files: int | None
    in_memory: bool
    runs: bool
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """Facts about what this machine offers besides networks.

    Args:
        tmp: the folder for temporary files.
        shared: the folder of allocations.
        home: how compute nodes see the home directory, says the profile.
        shared_in_home: whether *shared* is in the home directory.
        exceeded: file systems on which this user is over a quota, as `quota` prints them.
        munge: whether munge's socket is there.
        profile: the profile, with the date of its check and its source; empty if none matches.
    """

    tmp: Folder
    shared: Folder
    home: Literal["rw", "ro", "none"]
    shared_in_home: bool
    exceeded: Sequence[str]
    munge: bool
    profile: str
    versions: Mapping[str, str]


def examine_local(facts: LocalFacts) -> list[Finding]:
    """Return all findings, in reading order."""
    return [
        *([Finding("profile", facts.profile)] if facts.profile else []),
        _tmp(facts.tmp),
        _shared(facts),
        _quota(facts.exceeded),
        Finding("munge", "there" if facts.munge else "not there; monarch-hpc does not need it"),
        *(Finding(name, version) for name, version in facts.versions.items()),
    ]


def compare_versions(here: Mapping[str, str], there: Mapping[str, str], host: str) -> Iterator[Finding]:
    """Yield a finding for each version that differs between this machine and a host.

    Args:
        here: findings of this machine: what -> found.
        there: the same of *host*.
    """
    for name in ("python", "package", *PACKAGES):
        one, other = here.get(name, "not installed"), there.get(name, "not installed")
        if one.partition(",")[0] == other.partition(",")[0]:
            continue
        # Agents and programs of different versions do not speak to each other; other packages may work.
        worse = Severity.PROBLEM if name in ("python", "package") else Severity.WARN
        advice = "install the same on both sides, or name the hosts' interpreter in config key agent.python"
        yield Finding(f"{host}: {name}", f"{other} there, {one} here", worse, advice)


def _tmp(folder: Folder) -> Finding:
    found = f"{folder.path}, {format_size(folder.free_bytes)} free" + (", in memory" if folder.in_memory else "")
    if folder.problem:
        return Finding("tmp", f"{folder.path}: {folder.problem}", Severity.PROBLEM, "let TMPDIR name another folder")
    if not folder.runs:
        advice = "compiled extensions cannot be loaded from it: let TMPDIR name another folder, also on hosts"
        return Finding("tmp", f"{found}, mounted noexec", Severity.WARN, advice)
    if folder.free_bytes < _TMP_LEAST_BYTES:
        return Finding("tmp", found, Severity.WARN, "free some, or let TMPDIR name another folder")
    return Finding("tmp", found)


def _shared(facts: LocalFacts) -> Finding:
    folder = facts.shared
    files = "" if folder.num_free_files is None else f", {folder.num_free_files} files"
    found = f"{folder.path}, {format_size(folder.free_bytes)}{files} free"
    if folder.problem:
        advice = "set config key paths.shared to a folder that login and compute nodes can write"
        return Finding("paths.shared", f"{folder.path}: {folder.problem}", Severity.PROBLEM, advice)
    if facts.home != "rw" and facts.shared_in_home:
        how = "do not have" if facts.home == "none" else "can only read"
        advice = "set config key paths.shared to a folder that compute nodes can write"
        return Finding("paths.shared", f"{folder.path}: compute nodes {how} homes", Severity.PROBLEM, advice)
    few = folder.num_free_files is not None and folder.num_free_files < _LEAST_FILES
    if few or folder.free_bytes < _SHARED_LEAST_BYTES:
        return Finding(
            "paths.shared", found, Severity.WARN, "free some: an allocation that cannot write does not start"
        )
    return Finding("paths.shared", found)


def _quota(exceeded: Sequence[str]) -> Finding:
    if not exceeded:
        return Finding("quota", "none exceeded, as far as 'quota' knows")
    advice = "remove files: a job that cannot write its output fails without a word"
    return Finding("quota", f"exceeded on {', '.join(exceeded)}", Severity.WARN, advice)
