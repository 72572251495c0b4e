"""Metrics of a program, kept in the table `metrics`, and passed on to OpenTelemetry where the program uses it."""

from __future__ import annotations

import sys
from _thread import RLock
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, SupportsFloat

from monarch_hpc.actor.context import context
from monarch_hpc.actor.device_values import DeviceValues
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.arguments import check_text, shown
from monarch_hpc.telemetry.layout import NO_STEP
from monarch_hpc.telemetry.recorder import Recorder

__all__ = ["LIBRARY", "Instrument", "Meter", "Tag", "check_tags", "get_meter", "log_metric", "own_recorder"]

LIBRARY = "monarch_hpc"
"""The name of this package in OpenTelemetry."""

Tag = str | int | float | bool
_TAGS = frozenset((str, int, float, bool))

_INT64 = 1 << 63

_plain: set[type] = {float, int}
"""Types of values that the pen takes as they are: no texts, and none that may be on a device. NumPy's are added as they
come, up to `_MAX_PLAIN`: it has some twenty types of numbers, but programs may make more."""
_MAX_PLAIN = 32


def own_recorder() -> Recorder:
    """The recorder of this process. In a forked child, its memory has no reader."""
    return (Runtime.current or current_runtime()).recorder


def log_metric(name: str, value: SupportsFloat, /, *, step: int | None = None, **tags: Tag) -> None:
    """Record a number of the program, such as its loss; in the table `metrics`. Takes a third of a microsecond.

    Each process keeps its latest ones, see docs/telemetry.md.

    Args:
        value: anything that `float` takes but text. A tensor on a device is copied beside its work, and recorded by the
            first later call that finds the copy there: nothing waits for the device.
        step: number of the step that it belongs to.
        tags: texts and numbers that are recorded with it.

    Raises:
        TypeError: the name is not a str, the value is not a number, or a tag is not a text or a number.
        ValueError: the step does not fit into 64 bits.
    """
    recorder = (Runtime.current or current_runtime()).recorder
    is_plain = (type(value) is float or type(value) in _plain) and not _on_devices.pending
    if not is_plain or not recorder.known_metric(context().mark, name, tags, step, value):
        _log_any(recorder, name, value, step, tags)


def _log_any(recorder: Recorder, name: str, value: SupportsFloat, step: int | None, tags: Mapping[str, Tag]) -> None:
    if _on_devices.pending:
        _on_devices.write_ready()
    labels = (
        context().mark,
        recorder.names.metric(check_text("the name of a metric", name, filled=True)),
        recorder.names.tags(check_tags(name, tags)) if tags else 0,
        NO_STEP if step is None else _check_step(name, step),
    )
    if type(value) is not float and getattr(value, "is_cpu", True) is False:
        _add_on_device(name, value, partial(recorder.metric, *labels))
        return
    recorder.metric(*labels, value if type(value) is float else _check_value(name, value))
    if type(value).__module__ == "numpy" and len(_plain) < _MAX_PLAIN:
        _plain.add(type(value))


_on_devices = DeviceValues()


def _add_on_device(name: str, value: object, write: Callable[[float], None]) -> None:
    try:
        _on_devices.add(value, write)
    except (TypeError, AttributeError) as error:
        where = getattr(value, "device", "another device")
        raise TypeError(
            f"metric {name!r}: its value is on {where}, and cannot be read when it is ready: {error}; "
            "log value.item(), which waits for the device"
        ) from error
    _on_devices.write_ready()


def _check_value(name: str, value: object) -> float:
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"metric {name!r}: its value must be a number, not {shown(value)}")
    if getattr(value, "is_cpu", True) is False:
        where = getattr(value, "device", "another device")
        raise TypeError(f"metric {name!r}: its value is on {where}; record value.item(), which waits for the device")
    try:
        return float(value)  # type: ignore[arg-type]  # anything with __float__
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"metric {name!r}: its value must be a number, not {shown(value)}") from error


def _check_step(name: str, step: object) -> int:
    try:
        number = int(step.__index__())  # type: ignore[attr-defined]  # any integer, such as NumPy's
    except (AttributeError, TypeError) as error:
        raise TypeError(f"metric {name!r}: step must be an int, not {shown(step)}") from error
    if not -_INT64 < number < _INT64:
        raise ValueError(f"metric {name!r}: step {shown(step)} does not fit into 64 bits")
    return number


def check_tags(name: str, tags: Mapping[str, object]) -> Mapping[str, Any]:
    """Return the tags of the metric or span *name*.

    Raises:
        TypeError: one of them is not a text or a number.
    """
    for tag, value in tags.items():
        if type(value) not in _TAGS:
            raise TypeError(f"{name!r}: tag {tag} must be a str, int, float or bool, not {shown(value)}")
    return tags


class Instrument:
    """An instrument of a `Meter`: keeps a number by attributes, and writes each new one to the table `metrics`.

    Args:
        sums: whether it adds amounts up.
        theirs: the instrument of OpenTelemetry, which gets the same; None without.
    """

    def __init__(self, name: str, theirs: Any, *, sums: bool) -> None:
        self._name = name
        self._theirs = theirs
        self._sums = sums
        self._totals: dict[int, float] = {}
        self._lock = RLock()  # a signal handler may count, too

    def add(self, amount: float, attributes: Mapping[str, object] | None = None, *args: Any) -> None:
        """Count *amount*: the metric is the sum so far, of this process and for these attributes."""
        self._take("add", amount, attributes, args)

    def record(self, amount: float, attributes: Mapping[str, object] | None = None, *args: Any) -> None:
        """Record a value."""
        self._take("record", amount, attributes, args)

    def set(self, amount: float, attributes: Mapping[str, object] | None = None, *args: Any) -> None:
        """Record a new value."""
        self._take("set", amount, attributes, args)

    def _take(self, method: str, amount: float, attributes: Mapping[str, object] | None, args: tuple[Any, ...]) -> None:
        if self._theirs is not None:
            getattr(self._theirs, method)(amount, attributes, *args)
        recorder, value = own_recorder(), _check_value(self._name, amount)
        # OpenTelemetry allows lists of values, too.
        plain = {str(tag): one if type(one) in _TAGS else str(one) for tag, one in (attributes or {}).items()}
        tags = recorder.names.tags(plain)  # type: ignore[arg-type]  # checked one by one
        if self._sums:
            with self._lock:
                value = self._totals[tags] = self._totals.get(tags, 0.0) + value
        recorder.metric(context().mark, recorder.names.metric(self._name), tags, NO_STEP, value)


class Meter:
    """Makes instruments as OpenTelemetry's meters do, whose values are in the table `metrics`.

    Where the program has imported OpenTelemetry, its provider gets the same values; observable instruments, which only
    a provider reads, are those of OpenTelemetry.
    """

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Instrument:
        """Make an instrument that only grows: `Instrument.add`."""
        return self._make("create_counter", name, unit, description, sums=True)

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> Instrument:
        """Make an instrument that grows and shrinks: `Instrument.add`."""
        return self._make("create_up_down_counter", name, unit, description, sums=True)

    def create_histogram(self, name: str, unit: str = "", description: str = "", **options: Any) -> Instrument:
        """Make an instrument of values whose distribution is of interest: `Instrument.record`."""
        return self._make("create_histogram", name, unit, description, sums=False, **options)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Instrument:
        """Make an instrument of the present value: `Instrument.set`."""
        return self._make("create_gauge", name, unit, description, sums=False)

    def _make(self, method: str, name: str, unit: str, about: str, *, sums: bool, **options: Any) -> Instrument:
        name = check_text("the name of an instrument", name, filled=True)
        theirs = None if self._theirs is None else getattr(self._theirs, method)(name, unit, about, **options)
        return Instrument(name, theirs, sums=sums)

    def __getattr__(self, name: str) -> Any:
        if self._theirs is None:
            raise AttributeError(f"a meter has no {name} without OpenTelemetry: import opentelemetry.metrics first")
        return getattr(self._theirs, name)


def get_meter() -> Meter:
    """Return the meter of this package."""
    metrics = sys.modules.get("opentelemetry.metrics")  # who uses it has imported it
    return Meter(None if metrics is None else metrics.get_meter(LIBRARY))
