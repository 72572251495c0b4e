"""Options that several commands have, and checks of their values before these do anything: times, files, hosts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import check_writable
from monarch_hpc.core.text.units import parse_duration, parse_span

__all__ = ["deadline_option", "limit_seconds", "num_hosts", "output_file", "seconds", "seconds_or_zero", "since_option"]

_F = TypeVar("_F", bound=Callable[..., Any])
_COUNT = r"0*[1-9]\d{0,8}[kKmM]?"
_RANGE = re.compile(rf"{_COUNT}(-{_COUNT}(:{_COUNT})?)?(,{_COUNT}(-{_COUNT}(:{_COUNT})?)?)*", re.ASCII)


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return the time that an option gives, in seconds; a callback for `click.option`.

    Raises:
        BadParameter: it is not a time, or a number without a unit.
    """
    return _parsed(parse_span, context, parameter, value)


def seconds_or_zero(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return the time that an option gives, which may be ``0``; else as `seconds`.

    Raises:
        BadParameter: as for `seconds`.
    """
    return 0 if value is not None and value.strip() in ("0", "0s") else seconds(context, parameter, value)


def limit_seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return the time limit of a job that an option gives as Slurm takes it, where a number alone means minutes.

    Raises:
        BadParameter: it is not a time limit.
    """
    return _parsed(parse_duration, context, parameter, value)


def _parsed(
    parse: Callable[[str], int], context: click.Context, parameter: click.Parameter, value: str | None
) -> int | None:
    if value is None:
        return None
    try:
        return parse(value)
    except ConfigError as error:
        raise click.BadParameter(f"{value!r} is {error.problem}", context, parameter) from error


def deadline_option(what: str) -> Callable[[_F], _F]:
    """Return the option ``--deadline`` of a command that waits for *what*; it is passed as *timeout_s*."""
    return click.option(
        "--deadline",
        "timeout_s",
        metavar="TIME",
        default="10s",
        show_default=True,
        callback=seconds,
        help=f"Wait no longer for {what}.",
    )


def since_option(what: str) -> Callable[[_F], _F]:
    """Return the option ``--since`` of a command that shows the past."""
    return click.option("--since", metavar="TIME", callback=seconds, help=f"Only {what} of the last TIME, e.g. 10m.")


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


def num_hosts(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return a number of hosts as sbatch takes it; a callback for `click.option`.

    Raises:
        BadParameter: it is not one.
    """
    if value is None or _RANGE.fullmatch(value):
        return value
    raise click.BadParameter(f"{value!r} is not a number of hosts; write 4, or 2-4", context, parameter)
