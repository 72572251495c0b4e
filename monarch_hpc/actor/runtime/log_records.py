"""Records of `logging` in a proc: without a word from the actors' code they go to the program, as records.

A handler at the root logger takes what nobody else takes. Code that configures logging finds it as in any
program: whatever handler there is for a record has it alone, and `basicConfig` does what it does elsewhere.
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
"""The level of config key `logs.level`, in a proc."""

_formatter = logging.Formatter()


class RecordHandler(logging.Handler):
    """Sends records to the program, with logger, level, rank and host; for code that configures logging itself.

    In an actor: ``logging.basicConfig(level=logging.INFO, handlers=[RecordHandler()])``. Outside of a proc
    there is nobody to send to: there it writes the plain text to stderr.
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
        except Exception:  # noqa: BLE001 as all handlers do: logging.raiseExceptions decides
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
    # What was printed before it, without a line feed, comes before it.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    # Straight to the pipe: sys.stderr may be somebody's StringIO, and text layers break lines as they like.
    left = memoryview(line)
    while left:
        left = left[os.write(_STDERR, left) :]


class _Fallback(RecordHandler):
    """At the root logger: takes the records that no other handler takes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send *record* if nobody else has it."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            # Libraries give their loggers a NullHandler, which takes nothing.
            if any(other is not self and not isinstance(other, logging.NullHandler) for other in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        super().emit(record)


def listen(level: str) -> None:
    """Take the records of this proc that nobody else takes, from *level* on, a name of `logging`."""
    global _configured
    _configured = logging.getLevelNamesMapping()[level]
    RecordHandler._in_proc = True
    root = logging.getLogger()
    fallback = _Fallback()
    root.addHandler(fallback)
    set_level(_configured)
    configure = logging.basicConfig

    def basic_config(**options: Any) -> None:
        # It does nothing where the root logger has a handler, and users did not put this one there. Not
        # `logging.lastResort` instead: `logging.warning` and the like configure a root logger that has none.
        if fallback in root.handlers:
            root.removeHandler(fallback)
            root.setLevel(logging.WARNING)
        configure(**options)

    logging.basicConfig = basic_config


def set_level(level: int) -> None:
    """Let records of *level* and above pass, unless the actors' code has configured logging itself."""
    root = logging.getLogger()
    if root.handlers and all(isinstance(handler, _Fallback) for handler in root.handlers):
        root.setLevel(level)


class Level(Actor):
    """Sets the level of a running proc."""

    @endpoint
    def set(self, level: int | None) -> None:
        """Let records of *level* and above pass; None is the level of the configuration."""
        set_level(_configured if level is None else level)
