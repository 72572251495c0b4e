"""Checks values of options that several commands have, before these do anything: files to write."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import check_writable

__all__ = ["output_file"]


def output_file(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Return the file that an option names, if it can be written; a callback for `click.option`.

    Raises:
        ConfigError: its folder is missing, or no file can be written there.
    """
    if value is None or context.resilient_parsing:
        return value
    path = value.absolute()
    try:
        check_writable(path)
    except OSError as error:
        why, step = f"cannot be written: {error.strerror}", "choose a folder that is yours"
        if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
            why, step = f"there is no folder {path.parent}", f"make it by 'mkdir -p {shlex.quote(str(path.parent))}'"
        raise ConfigError("", "", str(path), f"{why}; {step}, or name another file") from error
    return value
