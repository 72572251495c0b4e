"""Tables as HTML for notebooks: escaped, without scripts, and small however much there is to show. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

__all__ = ["SHOWN_ROWS", "html_table", "short_repr"]

SHOWN_ROWS = 50
_MAX_COLUMNS = 40
_MAX_CELL_CHARS = 200
_MAX_CHARS = 40_000
"""Limit of the rows' text: a notebook keeps each output in its file, and a cell with many shows many."""


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], num_rows: int) -> str:
    """Return a table with the first of *rows*, and how many are not shown.

    Args:
        rows: of which no more are taken than are shown.
        num_rows: the number of all of them.
    """
    lines, num_chars = [], 0
    for row in itertools.islice(rows, SHOWN_ROWS):
        line = "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row[:_MAX_COLUMNS]) + "</tr>"
        num_chars += len(line)
        if num_chars > _MAX_CHARS:
            break
        lines.append(line)
    shown = "".join(f"<th>{_cell(name)}</th>" for name in head[:_MAX_COLUMNS])
    columns = f", {len(head) - _MAX_COLUMNS} more columns" if len(head) > _MAX_COLUMNS else ""
    more = f"<div>{num_rows - len(lines)} more rows{columns}</div>" if num_rows > len(lines) or columns else ""
    table = f"<table><thead><tr>{shown}</tr></thead><tbody>{''.join(lines)}</tbody></table>" if head else ""
    return f"<div><code>{_cell(caption)}</code>{table}{more}</div>"


def short_repr(value: object) -> str:
    """The `repr` of a value of a program, or what it raised instead."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 the value's own code
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"


def _cell(value: object) -> str:
    import html  # late, with all its entities: only notebooks draw tables

    text = value if isinstance(value, str) else repr(value) if isinstance(value, bytes) else str(value)
    cut = text if len(text) <= _MAX_CELL_CHARS else f"{text[: _MAX_CELL_CHARS - 1]}…"
    # Half of a surrogate pair cannot be written to a notebook's file.
    return html.escape(cut.encode(errors="replace").decode())
