"""Forwards `logging` records of a proc to the program, without any code in the actors.

A fallback handler at the root logger takes the records that no other handler takes. Code that configures logging sees
no difference to any other program: its handlers take their records exclusively, and `basicConfig` works as usual.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.wire.record import LogRecord, render_record

__all__ = ["Level", "RecordHandler", "listen", "set_level"]

_STDERR = 2

_configured = logging.WARNING
"""In a proc, the level from config key `logs.level`."""

_formatter = logging.Formatter()


class RecordHandler(logging.Handler):
    """Sends records to the program, with logger, level, rank and host; for code that configures logging itself.

    In an actor: ``logging.basicConfig(level=logging.INFO, handlers=[RecordHandler()])``. Outside of a proc it writes
    the plain text to stderr.
    """

    _in_proc = False

    def emit(self, record: logging.LogRecord) -> None:
        """Send *record*."""
        try:
            text = _text(record)
            if not RecordHandler._in_proc:
                print(f"{record.levelname} {record.name}: {text}", file=sys.stderr)
                return
            actor = context().actor_name if context().actor else ""
            line = render_record(
                LogRecord(
                    name=record.name,
                    level=int(record.levelno),
                    text=text,
                    at_s=float(record.created),
                    actor=actor,
                    path=str(record.pathname),
                    line=int(record.lineno),
                    function=str(record.funcName),
                    thread=str(record.threadName),
                )
            )
            _write(line)
        except Exception:  # noqa: BLE001 as all handlers: logging.raiseExceptions decides
            self.handleError(record)


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and not record.exc_text:
        record.exc_text = _formatter.formatException(record.exc_info)
    if record.exc_text:
        text += f"\n{record.exc_text}"
    if record.stack_info:
        text += f"\n{_formatter.formatStack(record.stack_info)}"
    return text


def _write(line: bytes) -> None:
    # Output without a line feed that was printed before stays before the record.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    # Directly to the pipe: sys.stderr may be a StringIO, and text layers may split lines.
    left = memoryview(line)
    while left:
        left = left[os.write(_STDERR, left) :]


class _Fallback(RecordHandler):
    """The handler at the root logger for records that no other handler takes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send *record* unless another handler takes it."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            # Libraries give their loggers a NullHandler, which takes nothing.
            if any(other is not self and not isinstance(other, logging.NullHandler) for other in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        super().emit(record)


def listen(level: str) -> None:
    """Install the fallback handler of this proc; *level* is the name of a `logging` level."""
    global _configured
    _configured = logging.getLevelNamesMapping()[level]
    RecordHandler._in_proc = True
    root = logging.getLogger()
    fallback = _Fallback()
    root.addHandler(fallback)
    set_level(_configured)
    configure = logging.basicConfig

    def basic_config(**options: Any) -> None:
        # `basicConfig` does nothing if the root logger has a handler, so the fallback must go first. `lastResort` would
        # not do: `logging.warning` and the like configure a root logger that has no handler.
        if fallback in root.handlers:
            root.removeHandler(fallback)
            root.setLevel(logging.WARNING)
        configure(**options)

    logging.basicConfig = basic_config


def set_level(level: int) -> None:
    """Pass records of *level* and above, unless the actors' code has configured logging itself."""
    root = logging.getLogger()
    if root.handlers and all(isinstance(handler, _Fallback) for handler in root.handlers):
        root.setLevel(level)


class Level(Actor):
    """Sets the level of a running proc."""

    @endpoint
    def set(self, level: int | None) -> None:
        """Pass records of *level* and above; None restores the configured level."""
        set_level(_configured if level is None else level)
