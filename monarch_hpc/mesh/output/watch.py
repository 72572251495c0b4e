"""A table of procs that is drawn again in its place while they work: what they run, since when, and their waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, Self

from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.core.shape import Region
from monarch_hpc.core.text.columns import text_table
from monarch_hpc.core.text.html import SHOWN_ROWS, html_table
from monarch_hpc.mesh.output.cells import running_shell
from monarch_hpc.wire.tables.calls import CALLS, ProcCalls

__all__ = ["ProcWatch", "rows_of", "watch"]

_HEAD = ("host", "pid", "state", "runs", "waits for")

_ANSWER_S = 5.0
"""Longest wait for the hosts' answer; what is missing then is said below the table."""

_MAX_CALLS = 3
"""Calls of one proc that are named."""


def rows_of(processes: Iterable[ProcCalls], ranks: Mapping[int, Sequence[str]]) -> list[list[str]]:
    """Return the rows of the table, without its head.

    Args:
        ranks: the coordinates of each rank that is watched.
    """
    found = {process.rank: process for process in processes}
    rows = []
    for rank, point in ranks.items():
        one = found.get(rank)
        if one is None:
            rows.append([*point, "", "", "gone", "", ""])
            continue
        names = {actor.actor: f"{actor.name}[{actor.rank}]" for actor in one.scene.actors}
        runs = [f"{names.get(call.actor, '')}.{call.endpoint} {call.age_s:.1f} s" for call in one.scene.running]
        sent = {call.call: call for call in one.scene.sent}
        waits = []
        for wait in one.scene.waits:
            call = next((sent[number] for number in wait.calls if number in sent), None)
            what = wait.what if call is None else f"{call.target_name}.{call.endpoint}"
            waits.append(f"{what} {wait.age_s:.1f} s" if wait.age_s else what)
        state = f"{one.state}: {one.cause}" if one.cause else one.state
        rows.append([*point, one.host, str(one.pid), state, _some(runs), _some(waits)])
    return rows


def _some(texts: Sequence[str]) -> str:
    more = [f"{len(texts) - _MAX_CALLS} more"] if len(texts) > _MAX_CALLS else []
    return ", ".join([*texts[:_MAX_CALLS], *more])


class TableDrawing(Protocol):
    """Where the table is shown."""

    def draw(self, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table in place of the one before."""
        ...


class ProcWatch:
    """A table of procs that a thread keeps up to date, until `stop` or the end of the block.

    Args:
        read: returns the caption and the rows of the present state.
    """

    def __init__(
        self,
        read: Callable[[], tuple[str, list[list[str]]]],
        head: Sequence[str],
        drawing: TableDrawing,
        interval_s: float,
    ) -> None:
        self._read = read
        self._head = head
        self._drawing = drawing
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._draw()
        self._thread = threading.Thread(target=self._work, name="monarch-watch", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._draw()

    def _draw(self) -> None:
        caption, rows = self._read()
        self._drawing.draw(caption, self._head, rows)

    def stop(self) -> None:
        """Leave the table as it is."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


class _Terminal:
    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._num_lines = 0
        self._last = ""

    def draw(self, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        text = f"{caption}\n{text_table([head, *rows[:SHOWN_ROWS]])}"
        if len(rows) > SHOWN_ROWS:
            text += f"\n{len(rows) - SHOWN_ROWS} more rows"
        if text == self._last:
            return
        self._last = text
        back = ""
        if self._stream.isatty() and self._num_lines:
            back = f"\x1b[{self._num_lines}F\x1b[J"  # to the first line, and clear from there
        plain = "".join(one if one.isprintable() or one == "\n" else "?" for one in text)
        print(f"{back}{plain}", file=self._stream, flush=True)
        self._num_lines = plain.count("\n") + 1


class _Cell:
    def __init__(self, display: Any, markup: Any) -> None:
        self._markup = markup
        self._handle = display(markup(""), display_id=True)

    def draw(self, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._handle.update(self._markup(html_table(caption, head, rows, len(rows))))


def watch(directory: Path, run: str, mesh: int, title: str, region: Region, every_s: float) -> ProcWatch:
    """Show procs of a mesh, in the output of a notebook's cell or on stderr, and keep that up to date.

    Args:
        directory: that of the allocation.
        region: the procs that are shown.
    """
    extent = region.extent
    ranks = {base: [*map(str, extent.point(rank).values())] for rank, base in enumerate(region.base_ranks())}

    def read() -> tuple[str, list[list[str]]]:
        answer = query_rows(directory, CALLS, _ANSWER_S, {"run": run, "mesh": mesh})
        if answer is None:
            return f"{title}: the head does not answer", []
        missing = f", without {', '.join(answer.missing)}" if answer.missing else ""
        return f"{title}{missing}", rows_of(answer.rows, ranks)

    drawing: TableDrawing = _Terminal(sys.stderr)
    if running_shell() is not None:
        from IPython.display import HTML, display

        drawing = _Cell(display, HTML)
    return ProcWatch(read, [*extent, *_HEAD], drawing, every_s)
