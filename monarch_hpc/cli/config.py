"""`monarch-hpc config`: shows the configuration and its origins."""

from __future__ import annotations

import click

from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import TextTable, current_output, output_options
from monarch_hpc.config import as_document

__all__ = ["command"]


@click.group(name="config")
def command() -> None:
    """Show the configuration."""


@command.command()
@click.option("--origin", is_flag=True, help="Also show the origin of each value: file and line, variable or flag.")
@output_options
def show(origin: bool) -> None:
    """Print every key with its value on this machine."""
    loaded = load_for_command({})
    values = _flat(as_document(loaded.config))
    document: dict[str, object] = {"config": as_document(loaded.config)}
    columns = ["KEY", "VALUE"]
    rows = [[key, _text(value)] for key, value in values.items()]
    if origin:
        document["origin"] = {key: loaded.origin(key) for key in values}
        columns.append("ORIGIN")
        rows = [[*row, loaded.origin(row[0])] for row in rows]
    quiet = [f"{key}={_text(value)}" for key, value in values.items()]
    current_output().show(document, TextTable(columns, rows), quiet)


def _flat(document: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Return a nested document by dotted key; each flag of a mapping of flags gets its own key."""
    flat: dict[str, object] = {}
    for name, value in document.items():
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if value == {}:
        return "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
