"""Parses and formats times and sizes in the notations of people and of Slurm."""

from __future__ import annotations

import re

from monarch_hpc.core.errors import ConfigError

__all__ = ["format_duration", "format_size", "format_slurm_time", "parse_duration", "parse_size", "parse_span"]

_SUFFIXED = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_CLOCK = re.compile(r"(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_DAYS = re.compile(r"(\d{1,6})-(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_SIZE = re.compile(r"(\d{1,15})(?:\s*([KMGTP])(?:i?B)?|\s*B)?", re.ASCII | re.IGNORECASE)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE_UNITS = "KMGTP"


def parse_duration(text: str) -> int:
    """Parse a time limit; return seconds.

    Accepted are Slurm's forms, ``30`` (minutes), ``MM:SS``, ``H:MM:SS``, ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS``; and
    ``90s``, ``30m``, ``2h``, ``1d``.

    Raises:
        ConfigError: *text* has none of these forms, or is zero; for Slurm 0 means "no limit", which we never request.
    """
    stripped = text.strip()
    if match := _SUFFIXED.fullmatch(stripped):
        seconds = int(match[1]) * _UNIT_S[match[2]]
    elif match := _DAYS.fullmatch(stripped):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    elif match := _CLOCK.fullmatch(stripped):
        first, second, third = match.groups()
        if third is not None:
            seconds = (int(first) * 60 + int(second)) * 60 + int(third)
        else:
            seconds = int(first) * 60 + int(second or 0)
    else:
        seconds = 0
    if seconds <= 0:
        raise ConfigError(
            "",
            text,
            repr(text),
            "not a time limit; write 30 (minutes), MM:SS, H:MM:SS, D-HH:MM:SS, 90s, 30m, 2h or 1d, more than 0",
        )
    return seconds


def parse_span(text: str) -> int:
    """Parse a time that is no limit of Slurm's, such as how long a command waits; return seconds.

    Accepted is what `parse_duration` takes, but for a number alone: elsewhere than in Slurm it is as likely to mean
    seconds as minutes.

    Raises:
        ConfigError: *text* has none of these forms, or is zero.
    """
    number = text.strip()
    if number.isascii() and number.isdecimal() and number.strip("0"):
        raise ConfigError("", text, repr(text), f"a number without a unit; write {number}s, {number}m or {number}h")
    try:
        return parse_duration(text)
    except ConfigError as error:
        known = "write 90s, 30m, 2h, 1d, MM:SS, H:MM:SS or D-HH:MM:SS, more than 0"
        raise ConfigError("", text, repr(text), f"not a time; {known}") from error


def format_duration(seconds: float) -> str:
    """Format a time for display, in at most two units: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two_units(whole // 60, "min", whole % 60, "s")
    if whole < 86400:
        return _two_units(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two_units(whole // 86400, "d", whole % 86400 // 3600, "h")


def format_slurm_time(seconds: int) -> str:
    """Format a time limit as Slurm prints it: ``[D-]HH:MM:SS``."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_size(text: str) -> int:
    """Parse a size: ``4096``, ``64K``, ``64KiB``, ``2 GB``; return bytes.

    Units are powers of 1024, as in Slurm. Unlike Slurm's ``--mem``, a bare number means bytes.

    Raises:
        ConfigError: *text* is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError("", text, repr(text), "not a size; write bytes, or a whole number with K, M, G, T or P")
    exponent = _SIZE_UNITS.index(match[2].upper()) + 1 if match[2] else 0
    return int(match[1]) << (10 * exponent)


def format_size(size_bytes: int) -> str:
    """Format a size for display: ``512 B``, ``1.5 GiB``."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _SIZE_UNITS:
        value /= 1024
        if value < 1023.95 or unit == _SIZE_UNITS[-1]:
            return f"{value:.1f}".removesuffix(".0") + f" {unit}iB"
    raise AssertionError(size_bytes)


def _two_units(count: int, unit: str, rest: int, lower: str) -> str:
    return f"{count} {unit} {rest} {lower}" if rest else f"{count} {unit}"
