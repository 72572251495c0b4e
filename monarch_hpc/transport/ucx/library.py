"""Finds the libucp of this process, and loads it.

The extension is not linked to UCX: a site's module, a distribution's package and PyPI's wheel have different versions,
compiled for different networks, and only the site's supports its InfiniBand. So libucp is searched for when the first
fast lane is wanted, in an order that puts the user's choice first and the wheel last.

A process can hold only one UCX: the libraries of two get bound to each other. If another library (an MPI) has loaded
one already, that one is used, or none.

UCX reads ucx.conf in the working directory, which names plug-ins to load and files to write, and a loader with an empty
entry in LD_LIBRARY_PATH takes libraries from there. Other users may write to that directory, so UCX is loaded by a
thread whose working directory is the root directory.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.transport.ucx.headroom import find_shortage

__all__ = ["Candidate", "Library", "Refusal", "find_warnings", "load_library", "name_transports", "plan_candidates"]

_SONAME = "libucp.so.0"
_CONFIGURATION = "ucx.conf"
_CLONE_FS = 0x200

# UCX's libraries by their sonames. A renamed copy inside another package's wheel (libucp-1a2b3c.so.0) is bound to
# nothing else and does not matter here.
_PART = re.compile(r"/lib(ucm|ucs|uct|ucp)\.so(\.\d+)*$")

# Transports built into libuct; all others are modules, each a file beside it.
_BUILT_IN = ("posix", "self", "sysv", "tcp")
_MODULE = re.compile(r"libuct_(\w+)\.so")


@dataclass(frozen=True)
class Candidate:
    """A libucp to try.

    Args:
        path: a file, or a name that the loader resolves.
        origin: where it comes from, as doctor prints it.
    """

    path: str
    origin: str


@dataclass(frozen=True)
class Refusal:
    """The reason why no libucp may be loaded at all."""

    reason: str


@dataclass(frozen=True)
class Library:
    """The libucp of this process, or the reason why it has none.

    Args:
        path: the file; empty if there is none.
        version: e.g. ``1.22.0``.
        origin: where it comes from.
        transports: transports it was built with, by UCX's names of its modules, sorted. Whether this machine has the
            hardware is not checked.
        warnings: warnings for the user, one sentence each.
        reason: why there is none; empty if there is one.
    """

    path: str = ""
    version: str = ""
    origin: str = ""
    transports: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reason: str = ""


def plan_candidates(
    named: str, mapped: Iterable[str], wheel: Path | None, real: Callable[[str], str] = os.path.realpath
) -> tuple[Candidate, ...] | Refusal:
    """Return the libucps to try, in order.

    A name from the user has no substitute: a run that silently uses another library than the requested one is slow for
    no visible reason.

    Args:
        named: the configured library; empty for none.
        mapped: all files that this process has mapped, as in /proc/self/maps.
        wheel: the folder of the package libucx, if it is installed.
        real: resolves symbolic links.
    """
    present = _find_present(mapped)
    if named and present and real(present) != real(named):
        return Refusal(
            f"ucx.library names {named}, but this process has {present} already, and two UCX in one process do not "
            "work; name that one, or start without what brought it (an MPI?)"
        )
    if named:
        return (Candidate(named, "ucx.library"),)
    if present:
        return (Candidate(present, "already in this process"),)
    loader = Candidate(_SONAME, "the system's or a module's")
    return (loader,) if wheel is None else (loader, Candidate(str(wheel / "lib" / _SONAME), "the package libucx"))


def _find_present(mapped: Iterable[str]) -> str:
    """Return the libucp that belongs to the mapped UCX libraries, even if libucp itself is not mapped."""
    parts = sorted({path for path in mapped if _PART.search(path)})
    for path in parts:
        if "/libucp.so" in path:
            return path
    return str(Path(parts[0]).parent / _SONAME) if parts else ""


def name_transports(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the transports of a UCX, from the file names in its folder of modules."""
    found = {match[1] for name in modules if (match := _MODULE.match(name))}
    return tuple(sorted(found.union(_BUILT_IN)))


def find_warnings(transports: Iterable[str], adapters: Iterable[str], interfaces: Iterable[str]) -> tuple[str, ...]:
    """Return warnings about networks of this machine that the library cannot use.

    Args:
        transports: the library's transports.
        adapters: names in /sys/class/infiniband.
        interfaces: names in /sys/class/net.
    """
    warnings = []
    adapters, slingshot = sorted(adapters), sorted(name for name in interfaces if name.startswith("hsn"))
    if adapters and not any(transport.startswith("ib") for transport in transports):
        warnings.append(
            f"this machine has InfiniBand ({', '.join(adapters)}), and this UCX was built without it: load the site's "
            "UCX module, or name its libucp in ucx.library"
        )
    if slingshot:
        warnings.append(
            f"this machine has Slingshot ({', '.join(slingshot)}), for which UCX has no transport: between hosts it "
            "uses tcp there"
        )
    return tuple(warnings)


def load_library(named: str = "") -> Library:
    """Load libucp for the life of this process, or return the reason why there is none, or why it must not be used now.

    Args:
        named: the only file to try, from the configuration; empty to search for one.
    """
    shortage = find_shortage()
    return Library(reason=shortage) if shortage else _load_once(named)


@functools.cache
def _load_once(named: str) -> Library:
    name = os.path.abspath(named) if "/" in named else named
    found: list[Library | Exception] = []

    def load() -> None:
        try:
            obstacle = _leave_folder()
            found.append(Library(reason=obstacle) if obstacle else _load_library(name))
        except Exception as error:  # noqa: BLE001 a thread's edge: re-raised in the caller
            found.append(error)

    Thread(load).join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _leave_folder() -> str:
    """Move only this thread to the root directory; if that is forbidden, return why UCX must not be loaded."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_FS):
        # Containers may forbid unshare altogether; without a ucx.conf that is harmless.
        if not os.path.lexists(_CONFIGURATION):
            return ""
        why = os.strerror(ctypes.get_errno())
        found = os.path.join(os.getcwd(), _CONFIGURATION)
        return f"it would read {found}, and cannot be kept from it (unshare: {why}); remove the file"
    os.chdir("/")
    return ""


def _load_library(named: str) -> Library:
    try:
        from monarch_hpc.transport.ucx import _ucx
    except ImportError as error:
        return Library(reason=_explain_no_extension(error))
    plan = plan_candidates(named, _list_mapped(), _find_wheel())
    if isinstance(plan, Refusal):
        return Library(reason=plan.reason)
    failures = []
    for candidate in plan:
        try:
            path, version = _ucx.load(candidate.path)
        except OSError as error:
            failures.append(f"{candidate.origin}: {error}")
            continue
        path = os.path.realpath(path)
        transports = name_transports(_list_names(Path(path).parent / "ucx"))
        warnings = find_warnings(
            transports, _list_names(Path("/sys/class/infiniband")), _list_names(Path("/sys/class/net"))
        )
        return Library(path, version, candidate.origin, transports, warnings)
    return Library(reason="no libucp: " + "; ".join(failures))


def _explain_no_extension(error: ImportError) -> str:
    if any(Path(__file__).parent.glob("_ucx*.so")):
        return f"the extension does not load: {error}"
    return (
        "built without a C compiler: install gcc and Python's headers (on Debian: gcc, python3-dev), then "
        "'pip install --force-reinstall --no-deps --no-cache-dir monarch-hpc'"
    )


def _list_mapped() -> list[str]:
    # Five columns, then the path, which may contain spaces.
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text(errors="replace").splitlines())
    return [columns[5] for columns in lines if len(columns) == 6]


def _find_wheel() -> Path | None:
    """Find the package libucx without importing it, which would load its libraries."""
    spec = importlib.util.find_spec("libucx")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _list_names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # most machines have no InfiniBand, and most UCX no modules
        return []
