"""Finds the part of a value that cannot be pickled: pickle's own error names its type, but not its place."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator, Mapping

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.process.signals import may_be_signal
from monarch_hpc.core.text.description import class_name, literal_of, summary_of
from monarch_hpc.wire.serializer import try_dumps

__all__ = ["refusal"]

_MAX_DEPTH = 20
_MAX_PARTS = 1000
"""Per container: in larger ones the container is named, not the part."""

_SEARCH_S = 1.0
"""Time limit of the search, which pickles the value repeatedly while the caller of an endpoint waits."""


def refusal(parts: Mapping[str, object], error: BaseException) -> Exception:
    """Return an error that names the part that cannot be sent, and why: TypeError, or MemoryError without a search.

    Args:
        parts: the values to be sent, by the sender's names for them.
        error: the exception that pickling raised.

    Raises:
        BaseException: *error* itself, if it may come from a signal handler.
    """
    if may_be_signal(error):
        raise error
    if issubclass(type(error), MemoryError):
        return MemoryError(f"{', '.join(parts)} cannot be sent: {summary_of(error)}")
    end_s = monotonic() + _SEARCH_S
    for name, value in parts.items():
        if _fails(value):
            path, obstacle = _descend(name, value, {id(value)}, end_s) or (name, value)
            name = class_name(obstacle)
            article = "an" if name[:1].lower() in "aeiou" else "a"
            return TypeError(f"{path}, {article} {name}, cannot be sent: {summary_of(error)}{_advice(obstacle)}")
    return TypeError(f"{', '.join(parts)} cannot be sent: {summary_of(error)}")


def _advice(obstacle: object) -> str:
    if issubclass(type(obstacle), (types.GeneratorType, types.AsyncGeneratorType)):  # `__class__` may be user code
        return "; send a list of its items, or each through a port"
    return ""


def _descend(name: str, value: object, seen: set[int], end_s: float) -> tuple[str, object] | None:
    """Find the innermost part that fails; None if it only leads back to values already *seen*.

    Args:
        end_s: when to settle for the part found so far, in seconds of `time.monotonic`.
    """
    leads_back = False
    if len(seen) <= _MAX_DEPTH:
        for path, part in itertools.islice(_parts(name, value), _MAX_PARTS):
            if monotonic() >= end_s:
                break
            if id(part) in seen:
                leads_back = True
            elif _fails(part):
                found = _descend(path, part, seen | {id(part)}, end_s)
                if found is not None:
                    return found
    return None if leads_back else (name, value)


def _parts(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The parts of *value*, as pickle sees them; those that can be read without an exception."""
    try:
        yield from _members(name, value)
    except BaseException:  # noqa: BLE001 user code; the value itself is the obstacle
        return


def _members(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{name}[{literal_of(key)}]", item
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield f"{name}[{index}]", item
    elif isinstance(value, set | frozenset):
        for item in value:
            yield f"a member of {name}", item
    elif isinstance(value, types.FunctionType):
        for free, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            yield f"{name}, variable {free}", cell.cell_contents
    elif not isinstance(value, type | types.ModuleType):
        yield from _attributes(name, value)


def _attributes(name: str, value: object) -> Iterator[tuple[str, object]]:
    reduced = value.__reduce_ex__(4)
    if not isinstance(reduced, tuple):
        return
    state = reduced[2] if len(reduced) > 2 else None
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            for key, item in part.items():
                yield f"{name}.{key if type(key) is str else literal_of(key)}", item
    for item in reduced[1] if isinstance(reduced[1], tuple) else ():
        yield f"what {name} is made of", item


def _fails(value: object) -> bool:
    try:
        try_dumps(value)
    except BaseException:  # noqa: BLE001 pickling runs user code
        return True
    return False
