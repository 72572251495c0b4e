"""Looks at this machine's folders, quotas and packages, for `local_facts`. Changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import tempfile
from pathlib import Path

from monarch_hpc.cli.checks.local_facts import PACKAGES, Folder, LocalFacts
from monarch_hpc.config.load import Loaded
from monarch_hpc.core.process.spawn import launch

__all__ = ["probe"]

_MUNGE_SOCKETS = ("/run/munge/munge.socket.2", "/var/run/munge/munge.socket.2")
# `quota` asks the file servers; one that is down must not delay the report.
_QUOTA_S = 3.0


def probe(loaded: Loaded, *, on_host: bool) -> LocalFacts:
    """Look at this machine.

    Args:
        on_host: it is a host of a job, so that `paths.node_tmp` is a folder of its own.
    """
    paths = loaded.config.paths
    tmp = paths.node_tmp if on_host and paths.node_tmp is not None else Path(tempfile.gettempdir())
    profile = loaded.profile
    return LocalFacts(
        tmp=_look_at(tmp),
        shared=_look_at(paths.shared),
        home=paths.home_on_compute,
        shared_in_home=paths.shared.is_relative_to(Path.home()),
        exceeded=_exceeded(),
        munge=any(os.path.exists(path) for path in _MUNGE_SOCKETS),
        profile="" if profile is None else f"{profile.name}, checked {profile.checked} against {profile.source}",
        versions={name: version for name in PACKAGES if (version := _version(name))},
    )


def _look_at(path: Path) -> Folder:
    folder = path
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Folder(str(path), 0, None, False, False, f"cannot be examined: {error.strerror}")
    writable = os.access(folder, os.W_OK | os.X_OK)
    return Folder(
        path=str(path),
        free_bytes=found.f_frsize * found.f_bavail,
        # File systems that make inodes as needed say 0 of 0.
        num_free_files=found.f_favail if found.f_files else None,
        in_memory=_type_of(folder) in ("tmpfs", "ramfs"),
        runs=not found.f_flag & os.ST_NOEXEC,
        problem="" if writable else f"{folder} cannot be written by you",
    )


def _type_of(folder: Path) -> str:
    """Return the type of the file system that holds *folder*; empty if unknown."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real = os.path.realpath(folder)
    for line in lines:
        _, point, found, *_ = line.split(" ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # The last of several mounts at one point is the one that is seen.
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def _exceeded() -> list[str]:
    ignored = subprocess.DEVNULL
    try:
        with launch(["quota", "-w"], stdin=ignored, stdout=subprocess.PIPE, stderr=ignored) as quota:
            try:
                output, _ = quota.communicate(timeout=_QUOTA_S)
            except subprocess.TimeoutExpired:
                quota.kill()
                return []
    except OSError:
        return []  # the command is not installed
    # A number above its quota is marked with a star.
    lines = output.decode(errors="replace").splitlines()
    return [line.split()[0] for line in lines if "*" in line and line.strip()]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
