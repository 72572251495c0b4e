"""The retention of what runs printed: of those that have ended the latest keep their files, so that nothing fills up.

The first host's agent removes the others, in a thread of its own: a stalled file system must not stall the agent.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.files import read_private, write_private
from monarch_hpc.core.logger import Logger

__all__ = ["Retention", "printed_runs", "removed_runs"]

_REMOVED = "runs.removed"
"""Lists the runs whose files were removed, one a line, the latest last."""

_REMEMBERED = 1000
"""So many of them: the file, which is written anew for each, stays below 64 KiB."""

_MAX_BYTES = 1 << 20

_log = Logger(__name__)


class Retention:
    """Removes the files of those runs that ended first.

    Args:
        directory: of the allocation.
        num_kept: how many runs that have ended and printed keep theirs; 0 sets no limit.
    """

    def __init__(self, directory: Path, num_kept: int) -> None:
        self._directory = directory
        self._num_kept = num_kept
        self._ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # Nothing runs yet under this agent: what is there is of runs before Slurm requeued the job.
        before = dict.fromkeys(self._printed() if num_kept else [])
        self._thread = threading.Thread(target=self._work, args=(before,), name="monarch-retention", daemon=True)
        self._thread.start()

    def ended(self, run: str) -> None:
        """A run has ended: its files are the latest, and those that are too many go."""
        if self._num_kept:
            self._ended.put(run)

    def close(self, timeout_s: float) -> None:
        """Wait until all is removed that has to be, at most *timeout_s* seconds."""
        self._ended.put(None)
        self._thread.join(timeout_s)

    def _work(self, ended: dict[str, None]) -> None:
        while (run := self._ended.get()) is not None:
            ended.pop(run, None)
            ended[run] = None
            if len(ended) <= self._num_kept:
                continue
            printed = set(self._printed())
            ended = {name: None for name in ended if name in printed or name == run}
            for name in list(ended)[: -self._num_kept]:
                del ended[name]
                self._remove(name)

    def _printed(self) -> list[str]:
        try:
            return printed_runs(self._directory)
        except OSError as error:
            _log.warning("cannot list the output of runs: %s", error)
            return []

    def _remove(self, run: str) -> None:
        try:
            names = [*removed_runs(self._directory), run][-_REMEMBERED:]
            # First, so that nobody misses files without a reason.
            write_private(self._directory / _REMOVED, "".join(f"{name}\n" for name in names).encode())
            shutil.rmtree(self._directory / "runs" / run)
        except (OSError, ConfigError) as error:
            _log.warning("cannot remove the output of run %s: %s", run, error)


def printed_runs(directory: Path) -> list[str]:
    """Return the runs of the allocation in *directory* that left files, the one that printed last at the end."""
    found: list[tuple[float, str]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory / "runs") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # it is removed just now
                if entry.is_dir(follow_symlinks=False):
                    found.append((entry.stat().st_mtime, entry.name))
    return [name for _, name in sorted(found)]


def removed_runs(directory: Path) -> list[str]:
    """Return the last of those runs whose files a `Retention` has removed.

    Raises:
        ConfigError: the list was not written by us.
        OSError: the system refused.
    """
    try:
        return read_private(directory / _REMOVED, _MAX_BYTES).decode(errors="replace").split()
    except FileNotFoundError:
        return []
