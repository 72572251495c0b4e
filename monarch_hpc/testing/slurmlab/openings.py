"""Chooses the folders of the real machine that a host of the lab must show.

Each host has its own /tmp and /run, and its ordinary users may not enter, for example, root's home. Folders there that
the lab needs (the interpreter, the virtual environment, the package, its own base) are shown at their usual paths,
while the rest of the closed folder is covered by an empty one. Only the host's own mounts change, never the machine's.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import monarch_hpc
from monarch_hpc.core.dataclass import dataclass

__all__ = ["OWN_FOLDERS", "Opening", "find_needed_paths", "is_closed", "plan_openings"]

# Folders that every host has for itself.
OWN_FOLDERS = (Path("/run"), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))


@dataclass(frozen=True, slots=True)
class Opening:
    """A folder to show at *path*, after the folder *cover*, if any, has been covered by an empty one."""

    path: Path
    cover: Path | None
    writable: bool


def find_needed_paths() -> tuple[Path, ...]:
    """Folders that Python programs need to start: interpreter, virtual environment, package."""
    # The links from the environment to the interpreter may pass through a folder other than the prefixes.
    links = []
    executable = Path(sys.executable)
    while executable.is_symlink():
        executable = Path(os.path.normpath(executable.parent / os.readlink(executable)))
        links.append(executable.parent.parent)
    package = Path(monarch_hpc.__file__).parents[1]
    return (Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), package, *links)


def is_closed(folder: Path) -> bool:
    """Whether ordinary users cannot pass through *folder*."""
    try:
        return not stat.S_IMODE(folder.stat().st_mode) & stat.S_IXOTH
    except FileNotFoundError:
        return False


def plan_openings(
    needed: Iterable[Path], shared: Path, closed: Callable[[Path], bool], real: Callable[[Path], Path]
) -> tuple[Opening, ...]:
    """The openings that make every needed path reachable, outer ones first.

    Args:
        needed: folders to show read-only.
        shared: the folder that all hosts can write.
        closed: whether ordinary users cannot pass through a folder.
        real: a path with all symbolic links resolved.
    """

    def hidden(folder: Path) -> bool:
        return folder in OWN_FOLDERS or closed(folder)

    paths = {_as_reached(shared, hidden, real): True, real(shared): True}
    for path in needed:
        paths.setdefault(_as_reached(path, hidden, real), False)
        paths.setdefault(real(path), False)
    openings: list[Opening] = []
    covered: set[Path] = set(OWN_FOLDERS)
    for path in sorted(paths, key=lambda one: (len(one.parts), one)):
        outer = max(
            (o.path for o in openings if path.is_relative_to(o.path)), key=lambda one: len(one.parts), default=None
        )
        above = [folder for folder in reversed(path.parents) if outer is None or folder.is_relative_to(outer)]
        if outer is not None:
            above = [folder for folder in above if folder != outer]
        first = next((folder for folder in above if hidden(folder)), None)
        if first is None and not (paths[path] and outer is not None):
            continue
        openings.append(Opening(path, None if first is None or first in covered else first, paths[path]))
        if first is not None:
            covered.add(first)
    return tuple(openings)


def _as_reached(path: Path, hidden: Callable[[Path], bool], real: Callable[[Path], Path]) -> Path:
    """*path* with links resolved down to the first hidden folder; below that, the path itself must be created."""
    reached = Path("/")
    for number, part in enumerate(path.parts[1:], 1):
        if hidden(reached):
            return reached.joinpath(*path.parts[number:])
        reached = real(reached / part)
    return reached
