"""Progress of a call on many actors: how many have answered, how fast, and for whom it waits."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator
from typing import IO, Any, Generic, Protocol, TypeVar

from monarch_hpc.core.arguments import check_instance, check_text
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.shape import Point
from monarch_hpc.mesh.calls.stream import Items, Stream
from monarch_hpc.mesh.output.cells import running_shell

__all__ = ["Progress", "progress", "render"]

R = TypeVar("R")

_REDRAW_S = 0.1
_LINE_S = 10.0
"""Time between two lines in a file, which cannot be redrawn."""

_MAX_NAMED = 3
"""Actors that are named when no more of them are waited for."""

_BAR_CHARS = 20


class Drawing(Protocol):
    """Where progress is shown."""

    def draw(self, text: str, part: float, *, last: bool) -> None:
        """Show the present state in place of the one before.

        Args:
            part: how much is done, from 0 to 1.
            last: whether it is the last one.
        """
        ...


def progress(answers: Stream[R] | Items[R], title: str = "") -> Progress[R]:
    """Iterate over the answers to a call as they arrive, and show how far it is.

    In a notebook this is a bar below the cell; on a terminal a line of stderr that is drawn again, ten times a second
    at most; elsewhere a line of stderr every ten seconds.

    Args:
        answers: ``mesh.endpoint.stream(...)``.
        title: shown in front.

    Returns:
        An iterator over (point, result) pairs, as `Stream.items` is.

    Raises:
        TypeError: *answers* are not those of a call, or *title* is not a string.
    """
    check_instance("answers", answers, (Stream, Items), "the answers to a call, mesh.endpoint.stream(...)")
    title = check_text("title", title)
    return Progress(answers.items() if isinstance(answers, Stream) else answers, title, _drawing())


class Progress(Generic[R]):
    """An iterator that shows how far it is; exceptions of ranks pass through, and it can go on after them."""

    def __init__(self, items: Items[R], title: str, drawing: Drawing) -> None:
        self._items = items
        self._title = title
        self._drawing = drawing
        self._begin_s = monotonic()
        self._draw()

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self

    def __len__(self) -> int:
        return len(self._items)

    def __next__(self) -> tuple[Point, R]:
        try:
            return next(self._items)
        finally:
            self._draw()

    def _draw(self) -> None:
        waiting = self._items.waiting(_MAX_NAMED)
        num_taken, num = self._items.num_taken, len(self._items)
        text = render(self._title, num_taken, num, monotonic() - self._begin_s, waiting)
        self._drawing.draw(text, num_taken / num if num else 1.0, last=num_taken == num)


def render(title: str, num_taken: int, num: int, passed_s: float, waiting: list[Point]) -> str:
    """Return one line: ``step 37/64 12.3/s, 3.0 s; waits for {'hosts': 3/4}``.

    Args:
        waiting: the actors that have not answered, if they are few.
    """
    rate = num_taken / passed_s if passed_s > 0 else 0.0
    named = "; waits for " + ", ".join(map(str, waiting)) if waiting else ""
    return f"{title + ' ' if title else ''}{num_taken}/{num} {rate:.1f}/s, {passed_s:.1f} s{named}"


class _Lines:
    """A stream: a terminal, whose line is drawn again, or a file."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._redraws = stream.isatty()
        self._due_s = 0.0
        self._num_chars = 0
        self._ended = False

    def draw(self, text: str, part: float, *, last: bool) -> None:
        now_s = monotonic()
        if self._ended or (now_s < self._due_s and not last):
            return
        self._ended = last
        self._due_s = now_s + (_REDRAW_S if self._redraws else _LINE_S)
        if not self._redraws:
            print(text, file=self._stream, flush=True)
            return
        done = int(part * _BAR_CHARS)
        line = f"[{'#' * done}{'.' * (_BAR_CHARS - done)}] {text}"
        print(f"\r{line.ljust(self._num_chars)}", end="\n" if last else "", file=self._stream, flush=True)
        self._num_chars = len(line)


class _Cell:
    """The output of a notebook's cell."""

    def __init__(self, display: Any, markup: Any) -> None:
        self._markup = markup
        self._handle = display(markup(""), display_id=True)
        self._due_s = 0.0

    def draw(self, text: str, part: float, *, last: bool) -> None:
        now_s = monotonic()
        if now_s >= self._due_s or last:
            self._due_s = now_s + _REDRAW_S
            bar = f'<progress value="{part:.4f}" max="1"></progress> <code>{html.escape(text)}</code>'
            self._handle.update(self._markup(bar))


def _drawing() -> Drawing:
    if running_shell() is None:
        return _Lines(sys.stderr)
    from IPython.display import HTML, display

    return _Cell(display, HTML)
