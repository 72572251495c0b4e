"""Takes the records of a host's procs out of their memory, and writes them as parts to the shared directory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.history import HISTORY
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, NAMES, NO_PROCESS, ROWS, SENDS, Heading
from monarch_hpc.telemetry.kept.parts import GROUP_HOSTS, list_parts, write_part
from monarch_hpc.telemetry.layout import RECORD_BYTES
from monarch_hpc.telemetry.reading import memory_of, read_names
from monarch_hpc.telemetry.scribe.drain import Drain
from monarch_hpc.telemetry.scribe.rate import choose, halvings
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.telemetry.scribe.spool import Spool
from monarch_hpc.wire.control.scribe import KeepRecords
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.keeping import HostKeeping
from monarch_hpc.wire.tables.procs import PROCS, ProcRow

__all__ = ["RecordKeeper"]

_LEAST_S, _MOST_S = 0.1, 5.0
"""Bounds of the time between two drains: in the shorter one, a process at 100 000 calls/s fills a third of a ring."""

_FULL, _EMPTY = 0.25, 0.05
"""Parts of a ring that are new at a drain: with more than the first one the next comes sooner, with less than the
second, later."""

_MAX_SPOOL_BYTES = 16 << 20
"""A part is written before its minute is over if it has become so large."""

_GIVE_UP_BYTES = 64 << 20
"""Bound on what could not be written yet; more is given up, because the disk of the host is not ours."""

_AGAIN_S = 1.0
"""Time between two parts at least, however many procs fail."""

_SAMPLES_S = 600.0
"""Samples alone are worth a file no more often: hosts at rest write none each minute."""

_OPEN = {"handled": "running", "sends": "open", "spans": "open"}
"""The state of records that have not ended, by table."""

_CALLS = frozenset({EVENTS, SENDS, CASTS})


@dataclass(slots=True, eq=False)
class _KeptProc:
    fd: int
    drain: Drain
    is_new: bool


class RecordKeeper:
    """Keeps the records of one host.

    Args:
        settings: the agent's order.
        host: name of the host.
        spool: descriptor of its file, which this object closes.
        correction: the present correction of this host's clock.
    """

    def __init__(self, settings: KeepRecords, host: str, spool: int, correction: Callable[[], Correction]) -> None:
        self._settings = settings
        self._directory = Path(settings.directory)
        self._host = host
        self._spool_fd = spool
        parts = [part for part in list_parts(self._directory) if part.host == settings.rank]
        self._spool = Spool(spool, max((part.number for part in parts), default=0) + 1)
        self._correction = correction
        self._procs: dict[ProcPlace, _KeptProc] = {}
        self._sizes = {part.number: part.num_bytes for part in parts}
        self._drained_s = self._shipped_s = monotonic()
        self._interval_s = _LEAST_S
        self._ship_at_s = self._shipped_s + settings.ship_s
        self._num_halvings = 0
        self._num_records = self._num_left_out = self._num_lost = 0
        self._problem = ""
        self._only_samples = True
        self._compacting: subprocess.Popen[bytes] | None = None
        self._compact_at_s = self._shipped_s + settings.compact_s

    # ---- what is due ----

    def due_s(self) -> float:
        """The time until `work` has something to do, in seconds."""
        return self._drained_s + self._interval_s - monotonic()

    def work(self) -> None:
        """Take and write what is due."""
        now_s = monotonic()
        if now_s >= self._drained_s + self._interval_s:
            self.drain()
        if self._spool.num_bytes >= _MAX_SPOOL_BYTES or now_s >= self._ship_at_s:
            self.ship()
        if now_s >= self._compact_at_s:
            self._compact_at_s = now_s + self._settings.compact_s
            self._compact()

    def add(self, place: ProcPlace, fd: int) -> None:
        """Begin to keep the records of a proc; the descriptor stays the caller's."""
        # What an earlier helper has taken may be without its names.
        self._procs[place] = _KeptProc(fd, Drain(memory_of(fd), self._spool.cursors(place)), self._spool.has_records)
        self._interval_s = _LEAST_S

    def end(self, place: ProcPlace, cause: str, *, failed: bool) -> None:
        """Take the last records of a proc; if it has *failed*, or was the last one, write a part within a second."""
        kept = self._procs.get(place)
        if kept is None:
            return
        self._drain_proc(place, kept, last=True)
        if failed:
            self._add_open(place, kept, "ended", cause)
            row = ProcRow(place.run, place.mesh, place.rank, self._host, place.pid, "ended", cause, 0, 0.0)
            self.add_rows({PROCS.name: [row]})
        self._add_names(place, kept)
        del self._procs[place]
        self._spool.forget(place)
        if failed or not self._procs:
            self._ship_at_s = min(self._ship_at_s, max(monotonic(), self._shipped_s + _AGAIN_S))

    def add_rows(self, rows: Mapping[str, list[Any]]) -> None:
        """Keep rows that are not records."""
        for name, some in rows.items():
            if some:
                text = TABLES[name].render(some, {}).encode()
                if not self._spool.add(Heading(ROWS, len(text), *NO_PROCESS, name, len(some)), text):
                    self._num_lost += len(some)

    def add_open(self) -> None:
        """Keep the calls and spans that have not ended."""
        for place, kept in self._procs.items():
            self._add_open(place, kept, "ready", "")

    def _add_open(self, place: ProcPlace, kept: _KeptProc, state: str, cause: str) -> None:
        process = ProcRow(place.run, place.mesh, place.rank, self._host, place.pid, state, cause, 0, 0.0)
        for name, status in _OPEN.items():
            rows = HISTORY[name](memory_of(kept.fd), process, self._correction())
            self.add_rows({name: [row for row in rows if getattr(row, "status", "") == status]})

    # ---- taking ----

    def drain(self, *, last: bool = False) -> None:
        """Take the records of all procs; *last* is thorough, for the end."""
        now_s = monotonic()
        before, fullest = self._num_records + self._num_left_out, 0.0
        for place, kept in self._procs.items():
            fullest = max(fullest, self._drain_proc(place, kept, last=last))
        passed_s = max(now_s - self._drained_s, _LEAST_S)
        self._num_halvings = halvings(
            (self._num_records + self._num_left_out - before) / passed_s, self._settings.max_per_s
        )
        self._drained_s = now_s
        factor = 0.5 if fullest > _FULL else 2.0 if fullest < _EMPTY else 1.0
        self._interval_s = min(max(self._interval_s * factor, _LEAST_S), _MOST_S)

    def _drain_proc(self, place: ProcPlace, kept: _KeptProc, *, last: bool) -> float:
        """Take the records of one proc; return how full the fullest of its rings was of new ones."""
        fullest = 0.0
        for taken in kept.drain.take(last=last):
            fullest = max(fullest, taken.part)
            self._num_lost += taken.num_lost
            records = choose(taken.records, self._num_halvings) if taken.what in _CALLS else taken.records
            num = len(records) // RECORD_BYTES
            self._num_left_out += len(taken.records) // RECORD_BYTES - num
            if not num:
                continue
            if self._spool.add(self._heading(taken.what, len(records), place), records):
                self._num_records += num
                self._only_samples = False
                kept.is_new = True
            else:
                self._num_lost += num
        return fullest

    def _add_names(self, place: ProcPlace, kept: _KeptProc) -> None:
        """Add what the numbers in the records of a proc stand for."""
        if not kept.is_new:
            return
        memory = memory_of(kept.fd)
        actors = memory(layout.ACTORS_AT, layout.NUM_ACTORS * RECORD_BYTES).rstrip(b"\0")
        num_actors = -(-len(actors) // RECORD_BYTES)
        contents = memory(0, layout.HEADER.size) + num_actors.to_bytes(4, "little")
        contents += actors.ljust(num_actors * RECORD_BYTES, b"\0") + read_names(memory)
        self._spool.add(self._heading(NAMES, len(contents), place), contents)
        kept.is_new = False

    def _heading(self, what: str, size: int, place: ProcPlace) -> Heading:
        correction = self._correction()
        process = place.run, place.mesh, place.rank, place.pid
        return Heading(what, size, self._host, *process, correction.offset_ns, correction.error_us, "", 0)

    # ---- writing ----

    def ship(self) -> None:
        """Write a part of what has been taken, if there is anything."""
        now_s = monotonic()
        self._ship_at_s = now_s + self._settings.ship_s
        if not self._spool.has_records or (self._only_samples and now_s < self._shipped_s + _SAMPLES_S):
            return
        self._write()

    def finish(self) -> None:
        """Take and write everything."""
        self.drain(last=True)
        if self._spool.has_records:
            self._write()

    def _write(self) -> None:
        self._shipped_s = monotonic()
        for place, kept in self._procs.items():
            self._add_names(place, kept)
        number = self._spool.number
        try:
            self._sizes[number] = write_part(self._directory, self._settings.rank, number, self._spool.read())
        except (OSError, ConfigError) as error:
            self._problem = str(error)
            if self._spool.num_bytes < _GIVE_UP_BYTES:
                return
            self._num_lost += self._spool.num_bytes // RECORD_BYTES
        else:
            self._problem = ""
        self._spool.next_part()
        self._only_samples = True
        self._drop_old()

    def _drop_old(self) -> None:
        """Remove this host's oldest parts, as long as all of them are larger than they may be."""
        excess = sum(self._sizes.values()) - self._settings.max_bytes
        if excess <= 0:
            return
        for part in list_parts(self._directory):
            if part.host == self._settings.rank and excess > 0 and part.number < self._spool.number - 1:
                part.path.unlink(missing_ok=True)
                excess -= self._sizes.pop(part.number, 0)

    def _compact(self) -> None:
        """Have the parts of this host's group made into files of tables, if this is the first host of the group."""
        rank, max_bytes = self._settings.rank, self._settings.max_bytes
        if rank % GROUP_HOSTS or (self._compacting is not None and self._compacting.poll() is None):
            return
        arguments = [str(self._directory), str(rank // GROUP_HOSTS), str(max_bytes * GROUP_HOSTS)]
        argv = [sys.executable, "-P", "-m", "monarch_hpc.telemetry.kept.compact", *arguments]
        # Without pyarrow on this host it ends at once, and parts stay what they are.
        quiet = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            self._compacting = launch(argv, stdin=quiet, stdout=quiet, stderr=quiet)

    def row(self) -> HostKeeping:
        """This host's row of the table of what is kept."""
        return HostKeeping(
            self._host,
            True,
            self._num_records,
            self._num_left_out,
            self._num_lost,
            len(self._sizes),
            sum(self._sizes.values()),
            self._spool.num_bytes,
            self._problem,
            *(0, 0, ""),
        )

    def close(self) -> None:
        """Write what is left, and let go of the spool."""
        self.finish()
        if self._compacting is not None and self._compacting.poll() is None:
            self._compacting.kill()
            self._compacting.wait()
        os.close(self._spool_fd)
