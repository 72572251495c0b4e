"""The window of `monarch-hpc top`: draws its screen with curses, and asks hosts in the background."""

from __future__ import annotations

import contextlib
import curses
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Protocol

from monarch_hpc.cli.tables.top_view import TopScreen
from monarch_hpc.telemetry.views.sighting import ProcSeen, Sighting

__all__ = ["show_window"]

_TICK_MS = 100

_CLOSE_S = 1.0
"""Longest wait at the end for the channels to close: a question that is under way is not waited for."""

_KEYS = {
    "KEY_UP": "up",
    "KEY_DOWN": "down",
    "KEY_PPAGE": "pageup",
    "KEY_NPAGE": "pagedown",
    "KEY_HOME": "home",
    "KEY_END": "end",
    "KEY_BACKSPACE": "backspace",
    "KEY_ENTER": "enter",
    "\n": "enter",
    "\r": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b": "escape",
}

_STYLES = {"head": curses.A_REVERSE, "bad": curses.A_BOLD, "selected": curses.A_STANDOUT, "": curses.A_NORMAL}


class Watched(Protocol):
    """What the window shows."""

    def look(self, before: Sighting) -> Sighting:
        """Take the next picture."""
        ...

    def close(self) -> None:
        """Take no more pictures."""
        ...


def show_window(
    screen: TopScreen,
    hosts: Watched,
    pages: dict[str, Callable[[ProcSeen], Iterable[str]]],
    every_s: float,
) -> None:
    """Show the window until its end.

    Args:
        hosts: asked in a thread.
        pages: the functions behind the keys for stack and logs, called in a thread.
        every_s: time between two pictures.

    Raises:
        curses.error: the terminal cannot be used.
    """
    curses.wrapper(lambda window: _Window(window, screen, hosts, pages, every_s).run())


class _Window:
    def __init__(
        self,
        window: curses.window,
        screen: TopScreen,
        hosts: Watched,
        pages: dict[str, Callable[[ProcSeen], Iterable[str]]],
        every_s: float,
    ) -> None:
        self._window = window
        self._screen = screen
        self._hosts = hosts
        self._pages = pages
        self._every_s = every_s
        self._snapshot = Sighting()
        self._over = threading.Event()
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self) -> None:
        curses.set_escdelay(25)  # else the escape key is taken for the first of a sequence for a second
        curses.curs_set(0)
        self._window.timeout(_TICK_MS)
        asking = threading.Thread(target=self._ask, daemon=True)
        asking.start()
        try:
            self._draw()
            while self._turn():
                pass
        except KeyboardInterrupt:
            pass
        finally:
            self._over.set()
            asking.join(_CLOSE_S)

    def _ask(self) -> None:
        with contextlib.closing(self._hosts):
            while not self._over.is_set():
                try:
                    snapshot = self._hosts.look(self._snapshot)
                except Exception as error:  # noqa: BLE001 a thread's edge: the window tells it
                    snapshot = replace(self._snapshot, warnings=[f"{type(error).__name__}: {error}"])
                self._news.put(lambda snapshot=snapshot: self._take(snapshot))  # type: ignore[misc]
                self._over.wait(self._every_s)

    def _take(self, snapshot: Sighting) -> None:
        self._snapshot = snapshot

    def _turn(self) -> bool:
        """Handle what has come: a key, a picture or a page; return False at the end."""
        changed = True
        try:
            pressed = self._window.get_wch()
        except curses.error:
            changed = False  # no key within the tick
        else:
            key = curses.keyname(pressed).decode() if isinstance(pressed, int) else pressed
            action, proc = self._screen.press(_KEYS.get(key, key), self._snapshot)
            if action == "quit":
                return False
            if action and proc is not None:
                self._screen.status = f"asking for the {action} of {proc.name} on {proc.process.host}"
                threading.Thread(target=self._fetch, args=(self._pages[action], proc), daemon=True).start()
        while True:
            try:
                self._news.get_nowait()()
            except Empty:
                break
            changed = True
        if self._fit() or changed:
            self._draw()
        return True

    def _fit(self) -> bool:
        """Take the size that the terminal has now; whether it had another. Its signal may be blocked or ignored."""
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
        if (lines, columns) == self._window.getmaxyx() or not lines or not columns:
            return False
        curses.resizeterm(lines, columns)
        self._window.clear()
        return True

    def _fetch(self, page: Callable[[ProcSeen], Iterable[str]], proc: ProcSeen) -> None:
        try:
            lines = list(page(proc))
        except Exception as error:  # noqa: BLE001 a thread's edge: the window tells it
            lines = [f"{type(error).__name__}: {error}"]
        self._news.put(lambda: self._screen.show(lines))

    def _draw(self) -> None:
        height, width = self._window.getmaxyx()
        self._window.erase()
        for place, (text, style) in enumerate(self._screen.render(self._snapshot, width, height)):
            try:
                self._window.addstr(place, 0, text, _STYLES[style])
            except curses.error:
                pass  # the cursor cannot move behind the last character of the screen
        self._window.refresh()
