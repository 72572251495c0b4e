"""The embedded allocation: agents as child processes on this machine, for the lifetime of one program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from monarch_hpc.allocation.ready import read_ready
from monarch_hpc.attach.local_agents import LocalAgents, take_expected
from monarch_hpc.config import Config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.scratch import PREFIX, temporary_folder

__all__ = ["find_local", "open_embedded", "open_local"]


@contextlib.contextmanager
def open_local(num_hosts: int, config: Config, directory: Path | None = None, *, entry: str = "") -> Iterator[Path]:
    """Make an allocation of *num_hosts* hosts that all are this machine; yield its directory.

    The agents are processes of this machine that listen on loopback only, named ``local0``, ``local1``, ...
    They and everything they started end with the context, or with this process, however it ends.

    Args:
        directory: the allocation's directory, created if missing; by default a fresh one in ``$XDG_RUNTIME_DIR`` or
            the temporary directory. It is removed at the end.
        entry: ``module:function`` that procs run; empty for the agents' own default.

    Raises:
        AgentsMissing: an agent did not report before the deadline (config key `slurm.bootstrap_s`).
        AllocationError: an agent ended before it was ready.
    """
    with contextlib.closing(LocalAgents(num_hosts, directory, entry)) as agents:
        agents.open(config)
        yield agents.directory


@contextlib.contextmanager
def open_embedded(config: Config, meanwhile: Callable[[], object]) -> Iterator[Path]:
    """Make the allocation of a program that has none: one host, whose agent may have been started already.

    Args:
        meanwhile: called while the agent starts.

    Raises:
        AgentsMissing, AllocationError: as for `open_local`.
    """
    with contextlib.closing(take_expected() or LocalAgents(1)) as agents:
        agents.open(config, meanwhile)
        yield agents.directory


def find_local() -> dict[str, Path]:
    """Return the directories of this user's embedded allocations that are ready, by name."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    parents = {temporary_folder(os.environ), *([Path(runtime)] if runtime else [])}
    found: dict[str, Path] = {}
    for parent in parents:
        for directory in sorted(parent.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError, ConfigError):
                if directory.stat().st_uid == os.getuid() and read_ready(directory) is not None:
                    found[directory.name] = directory
    return found
