"""Retention of log files: only the latest ended runs keep theirs, so that the file system does not fill up.

The first host's agent removes files in a separate thread: a stalled file system must not stall the agent.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.storage.files import read_private, write_private

__all__ = ["Retention", "printed_runs", "removed_runs"]

_REMOVED = "runs.removed"
"""File that lists the runs whose files were removed, one per line, the latest last."""

_REMEMBERED = 1000
"""Maximum entries of the list: it is rewritten for each, and stays below 64 KiB."""

_MAX_BYTES = 1 << 20

_log = Logger(__name__)


class Retention:
    """Removes the files of the runs that ended first.

    Args:
        directory: the allocation's directory.
        num_kept: number of ended runs that keep their files; 0 for no limit.
    """

    def __init__(self, directory: Path, num_kept: int) -> None:
        self._directory = directory
        self._num_kept = num_kept
        self._ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # No run is open yet under this agent: existing files are of runs before Slurm requeued the job.
        before = dict.fromkeys(self._printed() if num_kept else [])
        self._thread = threading.Thread(target=self._work, args=(before,), name="monarch-retention", daemon=True)
        self._thread.start()

    def ended(self, run: str) -> None:
        """Record the end of a run; the files of the oldest surplus runs are removed."""
        if self._num_kept:
            self._ended.put(run)

    def close(self, timeout_s: float) -> None:
        """Wait until pending removals are done, at most *timeout_s* seconds."""
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
        import shutil  # late, as the agent's start is that of its program

        try:
            names = [*removed_runs(self._directory), run][-_REMEMBERED:]
            # Listed before removal, so that missing files are always explained.
            write_private(self._directory / _REMOVED, "".join(f"{name}\n" for name in names).encode())
            shutil.rmtree(self._directory / "runs" / run)
        except (OSError, ConfigError) as error:
            _log.warning("cannot remove the output of run %s: %s", run, error)


def printed_runs(directory: Path) -> list[str]:
    """Return the runs in *directory* that have files, the one that printed last at the end."""
    found: list[tuple[float, str]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory / "runs") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # removed at this moment
                if entry.is_dir(follow_symlinks=False):
                    found.append((entry.stat().st_mtime, entry.name))
    return [name for _, name in sorted(found)]


def removed_runs(directory: Path) -> list[str]:
    """Return the latest runs whose files a `Retention` has removed.

    Raises:
        ConfigError: the list was not written by this user.
        OSError: the list cannot be read.
    """
    try:
        return read_private(directory / _REMOVED, _MAX_BYTES).decode(errors="replace").split()
    except FileNotFoundError:
        return []
