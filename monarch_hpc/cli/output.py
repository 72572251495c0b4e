"""Prints results and errors: tables for people, JSON for programs, bare words for shell scripts.

Results go to stdout, all else to stderr, so that `--json` never mixes with progress. Text from other sources (host
names, job names, Slurm's messages) cannot reach the terminal as control codes.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TextIO, TypeVar

import click

__all__ = ["Console", "Format", "TextTable", "current_output", "output_options", "plain"]

SCHEMA = 1
"""Version of the JSON documents: raised when a field is removed or changes its meaning."""

_Function = TypeVar("_Function", bound=Callable[..., object])


class Format(enum.Enum):
    """The format of a command's result."""

    TABLE = "table"
    JSON = "json"
    QUIET = "quiet"


class TextTable(NamedTuple):
    """Rows under headings; every row has one text per column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Console:
    """The output of one command.

    Args:
        stdout: stream for results.
        stderr: stream for progress and errors.
        colour: whether stdout may get terminal escape codes.

    Attributes:
        raw_exit: whether the exit codes of the user's program may be any, so that each failure of this package is 1.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO, *, colour: bool) -> None:
        self.format = Format.TABLE
        self.raw_exit = False
        self._stdout = stdout
        self._stderr = stderr
        self._colour = colour

    def exit_code(self, code: int) -> int:
        """Return the exit code of a failure of this package's own."""
        return 1 if self.raw_exit else code

    def show(self, document: Mapping[str, object], text: str | TextTable, quiet: Sequence[str] = ()) -> None:
        """Write a command's result; called once per command.

        Args:
            document: the result for programs; `schema` is added.
            text: the same for people.
            quiet: the same for shell scripts, one word or path per line.
        """
        match self.format:
            case Format.JSON:
                self._json(document)
            case Format.QUIET:
                self._write(self._stdout, "".join(f"{plain(line)}\n" for line in quiet))
            case Format.TABLE:
                if isinstance(text, str):
                    self._write(self._stdout, plain(text, lines=True) + "\n")
                elif self._colour:
                    self._rich_table(text)
                else:
                    self._write(self._stdout, _aligned(text))

    def stream(self, text: str) -> None:
        """Write part of an endless result: whole lines."""
        if text:
            self._write(self._stdout, plain(text, lines=True))

    def progress(self, text: str) -> None:
        """Write one line of progress to stderr; nothing with ``--quiet``."""
        if self.format is not Format.QUIET:
            self._write(self._stderr, plain(text) + "\n")

    def warn(self, text: str) -> None:
        """Write a warning to stderr; the command continues."""
        self._write(self._stderr, f"monarch-hpc: warning: {plain(text, lines=True)}\n")

    def error(self, type_name: str, message: str, exit_code: int) -> None:
        """Write the reason of a command's failure."""
        if self.format is Format.JSON:
            self._json({"error": {"type": type_name, "message": message, "exit_code": exit_code}})
        else:
            self._write(self._stderr, f"monarch-hpc: error: {plain(message, lines=True)}\n")

    def _json(self, document: Mapping[str, object]) -> None:
        import json  # here and not above: most commands print none

        # ASCII only, which is safe on any terminal and in any locale.
        self._write(self._stdout, json.dumps({"schema": SCHEMA, **document}, indent=1) + "\n")

    def _rich_table(self, table: TextTable) -> None:
        # Imported here, since rich takes longer to import than most commands take to run.
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        rich_table = RichTable(box=None, pad_edge=False, header_style="bold")
        for column in table.columns:
            rich_table.add_column(column, overflow="fold")
        for row in table.rows:
            # Text objects, since rich would interpret markup in plain strings.
            rich_table.add_row(*(Text(plain(cell)) for cell in row))
        Console(file=self._stdout).print(rich_table)

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()


def current_output() -> Console:
    """Return the running command's output; plain stdout and stderr outside of a command."""
    context = click.get_current_context(silent=True)
    found = context.find_object(Console) if context else None
    return found or Console(sys.stdout, sys.stderr, colour=False)


def output_options(function: _Function) -> _Function:
    """Add the options ``--json`` and ``--quiet`` to a command; they set the format of `current_output`."""

    def choose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        output = context.find_object(Console)
        if value and output is not None:
            output.format = Format(parameter.name)

    # Eager, so that even an error in a later option's callback is reported as JSON.
    for name, text in (("quiet", "Print only names, one per line."), ("json", "Print one JSON object, errors too.")):
        function = click.option(
            f"--{name}", is_flag=True, is_eager=True, expose_value=False, callback=choose, help=text
        )(function)
    return function


def plain(text: str, *, lines: bool = False) -> str:
    """Return *text* with all control characters escaped.

    Args:
        lines: keep line breaks.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else ascii(c)[1:-1] for c in text)


def _aligned(table: TextTable) -> str:
    rows = [table.columns, *([plain(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)
