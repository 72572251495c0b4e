"""Finds what a function reads beside its arguments, and tells later whether it is still the same.

It follows closures, globals that the code names, bound objects and defaults; in them containers and attributes, also
those of classes, and what the code names of modules.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from operator import contains, getitem, is_
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from monarch_hpc.tensor.ops.meta import Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor

__all__ = ["Edge", "Guards", "Reached", "is_same"]

_MAX_OBJECTS = 20_000
"""Objects that are followed from a function. A model of a thousand layers has fewer; more are data."""

_MAX_PARTS = 2_000
"""Entries of a container that is followed; larger ones are data."""

_SCALARS = frozenset(
    {bool, int, float, complex, str, bytes, type(None)} | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)

_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)

Edge = tuple[str, Any, Any]
"""The way to an object: ``item``, ``class`` for an item of its namespace, ``attribute``, ``cell``, ``len`` or ``keys``;
the holder; the key."""

_MISSING = object()


def _is_scalar(value: Any) -> bool:
    return type(value) in _SCALARS or (type(value) in (tuple, frozenset) and all(map(_is_scalar, value)))


def is_same(one: Any, other: Any) -> bool:
    """Whether two numbers, strings or tuples of them are the same to a step: not so 1 and True, or 0.0 and -0.0."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is tuple:
        return len(one) == len(other) and all(map(is_same, one, other))
    if kind in (float, complex):
        return repr(one) == repr(other)
    return bool(one == other)


def _get(edge: Edge) -> Any:
    kind, holder, key = edge
    try:
        if kind == "item":
            return _MISSING if _makes(holder) and key not in holder else holder[key]
        if kind == "class":
            return vars(holder)[key]
        if kind == "cell":
            return holder.cell_contents
        if kind == "attribute":
            return getattr(holder, key, _MISSING)
        return len(holder) if kind == "len" else _keys_of(holder)
    except (KeyError, IndexError, ValueError):
        return _MISSING


def _makes(holder: Any) -> bool:
    """Whether to look for an item that a mapping lacks may make it."""
    return hasattr(type(holder), "__missing__")


def _keys_of(holder: Any) -> Any:
    """The elements of a set, or the keys of a mapping in their order."""
    return frozenset(holder) if isinstance(holder, set) else tuple(holder)


class Reached:
    """What can be reached from a function.

    Attributes:
        scalars: numbers, strings and the like, with their edges, by identity of the holder and key.
        things: functions, containers, objects, and names of attributes, which decide what is read; with their edges.
        tensors: mesh tensors by number of their values, and the edges that lead to each.
        places: descriptions of these tensors, and their places in autograd's graph, as they were.
        modules: edges that lead to modules.
        optimizers: optimizers.
        hosted: what lives on the ranks, and is told of changes of attributes in the program before it is used.
    """

    def __init__(self, function: Any) -> None:
        self.scalars: dict[tuple[int, Any], tuple[Edge, Any]] = {}
        self.things: dict[Any, tuple[Edge, Any]] = {}
        self.tensors: dict[int, tuple[MeshTensor, tuple[Edge, ...]]] = {}
        self.places: dict[int, tuple[Meta, Any]] = {}
        self.modules: dict[Any, Edge] = {}
        self.optimizers: list[Optimizer] = []
        self.hosted: list[Any] = []
        self._quiet: set[int] = set()
        self._parent: dict[int, tuple[int, Edge]] = {}
        self._seen: dict[int, Any] = {}
        self._left: deque[Any] = deque()
        self._enter(function)
        while self._left and len(self._seen) < _MAX_OBJECTS:
            self._expand(self._left.popleft())

    def _enter(self, value: Any) -> None:
        self._seen[id(value)] = value
        self._left.append(value)

    def _follow(self, parent: Any, edge: Edge) -> None:
        value = _get(edge)
        if value is _MISSING:
            return
        if _is_scalar(value):
            self.scalars[id(edge[1]), edge[2]] = edge, value
            return
        if _is_thing(value) and not self._is_kept_by_library(parent, edge):
            self.things[_hashable(edge)] = edge, value
        if id(value) in self._seen:
            return
        self._parent[id(value)] = id(parent), edge
        if value.__class__ is MeshTensor:
            self._seen[id(value)] = value
            self.tensors[value._h.number] = value, self._path(value)
            self.places[value._h.number] = value._m, value._n
            return
        if isinstance(value, Optimizer):
            self.optimizers.append(value)
            self._quiet.update(id(one) for one in (value.state, *value.state.values()))
        if isinstance(value, (list, dict, set)) and id(value) not in self._quiet:
            self.scalars[id(value), "length"] = ("len", value, "length"), len(value)
            if not isinstance(value, list) and 1 < len(value) <= _MAX_PARTS and all(map(_is_scalar, value)):
                self._note("keys", value)
        if _is_user_object(value) and isinstance(getattr(value, "__dict__", None), dict):
            self._note("len", vars(value))
        if _is_hosted(value):
            self.hosted.append(value)
        if isinstance(value, nn.Module):
            for step in self._path(value):
                self.modules[_hashable(step)] = step
        self._enter(value)

    def _note(self, kind: str, holder: Any) -> None:
        edge = kind, holder, kind
        self.things[_hashable(edge)] = edge, _get(edge)

    def _is_kept_by_library(self, parent: Any, edge: Edge) -> bool:
        """Whether nobody but torch, or what checks optimizers, has business with an edge."""
        if isinstance(parent, nn.Module):
            return str(edge[2]).startswith("_")
        return isinstance(parent, (Optimizer, LRScheduler)) or id(edge[1]) in self._quiet or _is_hosted(parent)

    def _path(self, value: Any) -> tuple[Edge, ...]:
        path: list[Edge] = []
        at = id(value)
        while at in self._parent:
            at, edge = self._parent[at]
            path.append(edge)
        return tuple(reversed(path))

    def _expand(self, value: Any) -> None:
        for edge in _edges(value):
            self._follow(value, edge)


def _hashable(edge: Edge) -> Any:
    return edge[0], id(edge[1]), edge[2] if edge[2].__class__ in (str, int) else id(edge[2])


def _edges(value: Any) -> Iterable[Edge]:
    """The edges from an object."""
    if isinstance(value, FunctionType):
        if _is_library(value.__module__):
            return
        names = set(_names(value.__code__))
        for cell in value.__closure__ or ():
            yield "cell", cell, None
            yield from _named(_get(("cell", cell, None)), names)
        for name in names & value.__globals__.keys():
            yield "item", value.__globals__, name
            yield from _named(value.__globals__[name], names)
        yield from _parts(value.__defaults__ or ())
        yield from _parts(value.__kwdefaults__ or {})
        yield from _parts(vars(value))
    elif isinstance(value, MethodType):
        holder = (value.__self__, value.__func__)
        yield "item", holder, 0
        yield "item", holder, 1
    elif isinstance(value, (dict, list, tuple)):
        yield from _parts(value)
    elif isinstance(value, functools.partial):
        for name in ("func", "args", "keywords"):
            yield "attribute", value, name
    elif isinstance(value, SimpleNamespace):
        yield from _parts(vars(value))
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, (CellType, LRScheduler)) or type(value).__module__ in ("builtins", "types"):
        return  # a scheduler counts, and acts by the options of its optimizer
    elif _is_hosted(value):
        for name in ("holder", "_holder", "param_groups"):
            if name in vars(value):
                yield "item", vars(value), name
    elif isinstance(value, nn.Module) or not type(value).__module__.startswith("monarch_hpc."):
        if isinstance(getattr(value, "__dict__", None), dict):
            yield from _parts(vars(value))
        yield from _of_class(type(value))
        for cls in type(value).__mro__:
            for name, slot in vars(cls).items():
                if isinstance(slot, MemberDescriptorType) and not _is_library(cls.__module__):
                    yield "attribute", value, name


def _of_class(cls: type) -> Iterable[Edge]:
    for one in cls.__mro__:
        if not _is_library(one.__module__):
            for name, value in vars(one).items():
                if isinstance(value, FunctionType) or (_is_scalar(value) and not name.startswith("__")):
                    yield "class", one, name


def _named(module: Any, names: Iterable[str]) -> Iterable[Edge]:
    """What some code may name of a module that is no library."""
    if isinstance(module, ModuleType) and not _is_library(module.__name__):
        for name in names:
            if name in vars(module):
                yield "item", vars(module), name


def _is_user_object(value: Any) -> bool:
    return not _is_library(type(value).__module__) or isinstance(value, SimpleNamespace)


def _is_thing(value: Any) -> bool:
    """Whether what a function does may depend on which object it is."""
    if isinstance(value, (MeshTensor, nn.Module)):
        return False  # of which more is known
    return isinstance(value, (*_FUNCTIONS, type, dict, list, tuple, set, torch.Tensor, torch.Size)) or _is_user_object(
        value
    )


def _is_hosted(value: Any) -> bool:
    return type(value).__module__.startswith("monarch_hpc.tensor.training.") and hasattr(value, "send_changes")


_LIBRARIES = frozenset({"builtins", "monarch_hpc", "numpy", "torch"}) | sys.stdlib_module_names
"""Packages whose code is not followed."""


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _parts(value: Any) -> Iterable[Edge]:
    if len(value) > _MAX_PARTS:
        return
    for key in list(value) if isinstance(value, Mapping) else range(len(value)):
        yield "item", value, key


class Guards:
    """What must be as it was for a replay to be right.

    Args:
        reached: what the function reaches.
        externals: numbers of the values that the step uses, beside arguments and what it makes.
        volatile: keys of scalars that change from call to call, and so cannot matter.
        replaced: likewise, of things.
    """

    def __init__(
        self, reached: Reached, externals: Iterable[int], volatile: set[tuple[int, Any]], replaced: set[Any]
    ) -> None:
        edges: dict[Any, tuple[Edge, Any]] = {_hashable(edge): (edge, _get(edge)) for edge in reached.modules.values()}
        self._tensors: list[tuple[MeshTensor, Meta, int]] = []
        for number in externals:
            tensor, path = reached.tensors[number]
            self._tensors.append((tensor, tensor._m, number))
            edges.update((_hashable(edge), (edge, _get(edge))) for edge in path)
        self._edges = _Held(edges.values())
        self._scalars = _Held(found for key, found in reached.scalars.items() if key not in volatile)
        self._things = _Held(
            (edge, value)
            for key, (edge, value) in reached.things.items()
            if key not in replaced and key not in edges and (id(value), "length") not in volatile  # no log of numbers
        )
        modules = {id(child): child for _, child in edges.values() if isinstance(child, nn.Module)}
        parts = [(one._modules, one._parameters, one._buffers) for one in modules.values()]
        self._sizes = _Held((("len", part, "length"), len(part)) for three in parts for part in three)

    def hold(self) -> bool:
        """Whether all is as it was."""
        if not self._edges.are_same():
            return False
        for tensor, meta, number in self._tensors:
            if tensor._m is not meta or tensor._h.number != number:
                return False
        return (
            (self._scalars.are_same() or self._scalars.are_equal())
            and self._things.are_same()
            and self._sizes.are_same()
        )


class _Held:
    """Edges, and what they led to.

    Args:
        edges: edges and values.
    """

    def __init__(self, edges: Iterable[tuple[Edge, Any]]) -> None:
        self._all = list(edges)
        items = [(edge, value) for edge, value in self._all if edge[0] in ("item", "class")]
        self._holders = [vars(holder) if kind == "class" else holder for (kind, holder, _), _ in items]
        self._keys = [key for (_, _, key), _ in items]
        self._values = [value for _, value in items]
        making = [(holder, key) for holder, key in zip(self._holders, self._keys, strict=True) if _makes(holder)]
        self._making, self._made = [holder for holder, _ in making], [key for _, key in making]
        self._sized = [holder for (kind, holder, _), _ in self._all if kind == "len"]
        self._sizes = [value for (kind, _, _), value in self._all if kind == "len"]
        self._keyed = [holder for (kind, holder, _), _ in self._all if kind == "keys"]
        self._orders = [value for (kind, _, _), value in self._all if kind == "keys"]
        self._others = [(edge, value) for edge, value in self._all if edge[0] in ("cell", "attribute")]

    def are_same(self) -> bool:
        """Whether they lead to the same objects; of thousands, many in each call of a step, so without a loop here."""
        try:
            found = all(map(contains, self._making, self._made)) and all(
                map(is_, map(getitem, self._holders, self._keys), self._values)
            )
        except (LookupError, ValueError):
            return False
        return (
            found
            and list(map(len, self._sized)) == self._sizes
            and list(map(_keys_of, self._keyed)) == self._orders
            and all(_get(edge) is value for edge, value in self._others)
        )

    def are_equal(self) -> bool:
        """Whether they lead to scalars that are the same."""
        return all(is_same(_get(edge), value) for edge, value in self._all)
