"""Nested containers and the values in them, by keys such as ``layers.0.weight``. Pure."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

__all__ = ["Placeholder", "flatten", "join_trees", "named_leaves", "replace_all", "replace_leaves", "set_values"]

_Path = tuple[str, ...]

_MAX_TYPES = 1024
"""Number of types whose containers are known; more than a program has in its trees."""


class Placeholder:
    """Stands for an array in the structure of a tree."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return Placeholder, (self.key,)


def replace_leaves(tree: object, replace: Callable[[str, Any], Any]) -> Any:
    """Return *tree* with each value that is no container replaced by what *replace* returns for it.

    Containers are dicts, lists, tuples and dataclasses, and what is derived from them; those in which something changes
    are copied. *replace* is called with the value's key: the keys, positions and names of fields that lead to it,
    joined by dots.

    Raises:
        ValueError: two values have the same key, or a container contains itself.
    """
    keys = set[str]()

    def replace_once(key: str, value: Any) -> Any:
        if key in keys:
            raise ValueError(
                f"two values of the tree have the key {key!r}: rename one of the entries that lead to them"
            )
        keys.add(key)
        return replace(key, value)

    return _replace(tree, (), replace_once, [])


def _replace(value: Any, path: _Path, replace: Callable[[str, Any], Any], around: list[int]) -> Any:
    parts = _parts(value)
    if parts is None:
        return replace(".".join(path), value)
    if id(value) in around:
        raise ValueError(f"the tree contains itself at {'.'.join(path)!r}")
    around.append(id(value))
    changed = [(name, _replace(part, (*path, str(name)), replace, around)) for name, part in parts]
    around.pop()
    if all(part is before for (_name, part), (_same, before) in zip(changed, parts, strict=True)):
        return value
    if isinstance(value, tuple):
        parts_alone = [part for _name, part in changed]
        return value._make(parts_alone) if hasattr(value, "_make") else type(value)(parts_alone)
    made = copy.copy(value)
    for name, part in changed:
        _set(made, name, part)
    return made


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """The contents of a container with what leads to each; None for other values."""
    parts_of = _parts_by(type(value))  # type: ignore[arg-type]  # types are hashable
    return None if parts_of is None else parts_of(value)


@functools.lru_cache(_MAX_TYPES)
def _parts_by(kind: type) -> Callable[[Any], list[tuple[Any, Any]]] | None:
    """Takes apart containers of this type; None if it is not one. Kept, since a tree has thousands of arrays."""
    if issubclass(kind, dict):
        return lambda value: list(value.items())
    if issubclass(kind, list | tuple):
        return lambda value: list(zip(getattr(value, "_fields", itertools.count()), value, strict=False))
    if dataclasses.is_dataclass(kind):
        names = [one.name for one in dataclasses.fields(kind)]
        return lambda value: [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return None


def flatten(tree: object) -> tuple[list[Any], Hashable] | None:
    """The values in *tree* that are no containers, in the order of `named_leaves`, and a digest of the containers.

    Equal digests give equal keys: the containers' types, keys and attributes are equal. Some ten times as fast as
    `replace_leaves`. None if *tree* has other containers than dicts whose keys are texts (ordered ones, too), lists and
    tuples.
    """
    values: list[Any] = []
    try:
        return values, _flatten(tree, values)
    except (_NotPlainError, RecursionError):  # one that contains itself, which `replace_leaves` names
        return None


class _NotPlainError(Exception):
    """The tree has other containers."""


def replace_all(tree: object, replace: Callable[[str], Any]) -> Any:
    """A copy of a tree that `flatten` takes, each value in it replaced by what *replace* returns for its key.

    Some ten times as fast as `replace_leaves`; does not look for values that have the same key.
    """
    return _replace_all(tree, "", replace)


def _replace_all(container: Any, path: str, replace: Callable[[str], Any]) -> Any:
    kind = type(container)
    of_texts = kind is dict or kind is OrderedDict
    made = [
        _replace_all(part, f"{path}{name}.", replace) if type(part) in _PLAIN else replace(f"{path}{name}")
        for name, part in (container.items() if of_texts else enumerate(container))
    ]
    if not of_texts:
        return made if kind is list else tuple(made)
    copied = kind(zip(container, made, strict=True))
    if kind is OrderedDict:
        copied.__dict__.update(container.__dict__)
    return copied


_PLAIN = frozenset((dict, OrderedDict, list, tuple))
_TEXTS = frozenset((str,))


def _flatten(container: Any, values: list[Any]) -> Hashable:
    kind = type(container)
    form: Hashable
    if kind is list or kind is tuple:
        parts, form = container, len(container)
    elif kind in _PLAIN and _TEXTS.issuperset(map(type, container)):
        parts, form = container.values(), tuple(container)
        if kind is OrderedDict and container.__dict__:  # such as the `_metadata` of a state_dict
            form = form, _packed(container.__dict__)
    else:
        raise _NotPlainError
    inner = []
    for place, part in enumerate(parts):
        kind_of_part = type(part)
        if kind_of_part in _PLAIN:
            inner.append((place, _flatten(part, values)))
        elif _parts_by(kind_of_part) is None:  # type: ignore[arg-type]  # types are hashable
            values.append(part)
        else:
            raise _NotPlainError
    return kind, form, tuple(inner)


def _packed(attributes: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps(attributes, 5)
    except Exception as error:  # whatever objects users keep there
        raise _NotPlainError from error


def _set(container: Any, name: Any, part: Any) -> None:
    if isinstance(container, dict | list):
        container[name] = part
    else:
        object.__setattr__(container, name, part)  # its class may be frozen


def named_leaves(tree: object) -> dict[str, Any]:
    """The values in *tree* that are no containers, by their keys.

    Raises:
        ValueError: see `replace_leaves`.
    """
    found: dict[str, Any] = {}

    def note(key: str, value: Any) -> Any:
        found[key] = value
        return value

    replace_leaves(tree, note)
    return found


def set_values(tree: object, values: dict[str, Any]) -> None:
    """Set *values* by their keys in the containers of *tree*; those in tuples and frozen dataclasses stay."""
    for key, container, name in _places(tree, ()):
        params = getattr(type(container), "__dataclass_params__", None)
        if key in values and not isinstance(container, tuple) and not (params is not None and params.frozen):
            _set(container, name, values[key])


def _places(value: Any, path: _Path) -> Iterator[tuple[str, Any, Any]]:
    for name, part in _parts(value) or ():
        inner = (*path, str(name))
        if _parts(part) is None:
            yield ".".join(inner), value, name
        else:
            yield from _places(part, inner)


def join_trees(first: Any, second: Any) -> Any:
    """Add to the dicts in *first* what only those in *second* have; return *first*."""
    if isinstance(first, dict) and isinstance(second, dict):
        for name, part in second.items():
            first[name] = join_trees(first[name], part) if name in first else part
    return first
