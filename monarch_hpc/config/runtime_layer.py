"""The layer of settings that a program makes with `configure`, under Monarch's names.

A key of Monarch with an equivalent here changes that setting of ours, in allocations that the program makes from then
on: it wins over files and variables. The other keys have no effect, and are named once in a warning.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping

from monarch_hpc.config.channel_transport import parse_transport
from monarch_hpc.core.arguments import check_number, check_text, shown
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.logger import Logger

__all__ = ["clear_runtime_config", "configure", "configured", "get_runtime_config", "runtime_settings"]

_log = Logger(__name__)

_UNITS_S = {
    **dict.fromkeys(("ns", "nsec"), 1e-9),
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_PART = re.compile(r"\s*(\d+)\s*([a-z]+)")


def _seconds(key: str, value: object) -> float:
    """Read a time such as ``"30s"`` or ``"1h 30m"``."""
    text = check_text(key, value)
    total_s, place = 0.0, 0
    while match := _PART.match(text, place):
        if match[2] not in _UNITS_S:
            break
        total_s, place = total_s + int(match[1]) * _UNITS_S[match[2]], match.end()
    if not place or text[place:].strip():
        raise TypeError(f"{key} is {shown(value)}: give a time such as '30s', '5m' or '1h 30m'")
    return total_s


def _whole(key: str, value: object) -> int:
    return check_number(key, value, least=1)


@dataclass(frozen=True, slots=True)
class _Equivalent:
    """The setting of ours that a key of Monarch stands for, and the reader of its value."""

    key: str
    read: Callable[[str, object], float | int]


_EQUIVALENTS = {
    "codec_max_frame_length": _Equivalent("transport.max_frame_bytes", _whole),
    "host_spawn_ready_timeout": _Equivalent("slurm.bootstrap_s", _seconds),
    "max_cast_fanout": _Equivalent("transport.cast_fanout", _whole),
    "mesh_attach_config_timeout": _Equivalent("agent.attach_s", _seconds),
    "mesh_proc_spawn_max_idle": _Equivalent("procs.start_s", _seconds),
    "message_delivery_timeout": _Equivalent("transport.cut_s", _seconds),
    # All of these limit the end of procs and their actors there; the one given last counts.
    "mesh_terminate_timeout": _Equivalent("procs.stop_s", _seconds),
    "process_exit_timeout": _Equivalent("procs.stop_s", _seconds),
    "stop_actor_timeout": _Equivalent("procs.stop_s", _seconds),
}

_TRANSPORT = "default_transport"
_FORWARDING = "enable_log_forwarding"

_given: dict[str, object] = {}
_named: set[str] = set()


def configure(**kwargs: object) -> None:
    """Configure the allocations that this program makes from now on, by Monarch's keys.

    Times are strings such as ``"30s"``, ``"5m"`` or ``"1h 30m"``. docs/coming-from.md lists the keys that have an
    effect; the others are named once in a warning. `default_transport` is checked, and has none.

    Raises:
        TypeError: a value of the wrong type.
        ValueError: a number out of range, or a transport that does not exist here.
    """
    for key, value in kwargs.items():
        if key == _TRANSPORT:
            parse_transport(value)
        elif key in _EQUIVALENTS:
            _EQUIVALENTS[key].read(key, value)
        elif key == _FORWARDING and not isinstance(value, bool):
            raise TypeError(f"{key} is {shown(value)}: give True or False")
    _remember(kwargs)
    ignored = sorted(kwargs.keys() - _EQUIVALENTS.keys() - {_TRANSPORT, _FORWARDING} - _named)
    if ignored:
        _named.update(ignored)
        _log.warning("configure(): no effect here, see docs/coming-from.md: %s", ", ".join(ignored))


@contextlib.contextmanager
def configured(**overrides: object) -> Iterator[dict[str, object]]:
    """Apply `configure` to the block, and restore the earlier settings after it.

    Yields:
        The settings under Monarch's names, as `get_runtime_config` returns them.

    Raises:
        TypeError, ValueError: as for `configure`.
    """
    before = dict(_given)
    try:
        configure(**overrides)
        yield get_runtime_config()
    finally:
        clear_runtime_config()
        _given.update(before)


def get_runtime_config() -> dict[str, object]:
    """What the program has set with `configure`, under Monarch's names."""
    return dict(_given)


def clear_runtime_config() -> None:
    """Take back all that the program has set with `configure`."""
    _given.clear()


def runtime_settings() -> dict[str, object]:
    """What the program has set, by our keys; empty in most programs, and in agents and procs."""
    found: dict[str, object] = {}
    for name, value in _given.items():
        if name in _EQUIVALENTS:
            found[_EQUIVALENTS[name].key] = _EQUIVALENTS[name].read(name, value)
        elif name == _FORWARDING and value:
            # False leaves the output to the terminal of the program there, and so does ours.
            found["logs.stream_to_client"] = True
    return found


def _remember(values: Mapping[str, object]) -> None:
    for key, value in values.items():
        _given.pop(key, None)  # the order is that of the calls: the last one counts
        _given[key] = value
