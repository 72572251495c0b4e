"""Finds what a function reads beside its arguments, and tells later whether it is still the same.

It follows closures, globals that the code names, bound objects and defaults; in them containers and attributes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from operator import getitem, is_
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from monarch_hpc.tensor.ops.meta import Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor

__all__ = ["Edge", "Guards", "Reached"]

_MAX_OBJECTS = 20_000
"""Objects that are followed from a function. A model of a thousand layers has fewer; more are data."""

_MAX_PARTS = 2_000
"""Entries of a container that is followed; larger ones are data."""

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})

Edge = tuple[str, Any, Any]
"""The way to an object: ``item``, ``cell`` or ``len``, the holder, and the key."""

_MISSING = object()


def _is_scalar(value: Any) -> bool:
    return type(value) in _SCALARS or (type(value) is tuple and all(type(one) in _SCALARS for one in value))


def _get(edge: Edge) -> Any:
    kind, holder, key = edge
    try:
        if kind == "cell":
            return holder.cell_contents
        if kind == "len":
            return len(holder)
        return holder[key]
    except (KeyError, IndexError, ValueError):
        return _MISSING


class Reached:
    """What can be reached from a function.

    Attributes:
        scalars: numbers, strings and the like, with their edges, by identity of the holder and key.
        tensors: mesh tensors by number of their values, and the edges that lead to each.
        places: descriptions of these tensors, and their places in autograd's graph, as they were.
        modules: edges that lead to modules.
        optimizers: optimizers.
        hosted: what lives on the ranks, and is told of changes of attributes in the program before it is used.
    """

    def __init__(self, function: Any) -> None:
        self.scalars: dict[tuple[int, Any], tuple[Edge, Any]] = {}
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
        if _is_hosted(value):
            self.hosted.append(value)
        if isinstance(value, nn.Module):
            for step in self._path(value):
                self.modules[_hashable(step)] = step
        self._enter(value)

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
        for cell in value.__closure__ or ():
            yield "cell", cell, None
        names = set(_names(value.__code__))
        for name in names & value.__globals__.keys():
            yield "item", value.__globals__, name
        yield from _parts(value.__defaults__ or ())
        yield from _parts(value.__kwdefaults__ or {})
        yield from _parts(vars(value))
    elif isinstance(value, MethodType):
        holder = (value.__self__, value.__func__)
        yield "item", holder, 0
        yield "item", holder, 1
    elif isinstance(value, (dict, list, tuple)):
        yield from _parts(value)
    elif isinstance(value, (type, CellType, LRScheduler)) or type(value).__module__ in ("builtins", "types"):
        return  # a scheduler counts, and acts by the options of its optimizer
    elif _is_hosted(value):
        for name in ("holder", "_holder", "param_groups"):
            if name in vars(value):
                yield "item", vars(value), name
    elif isinstance(value, nn.Module) or not type(value).__module__.startswith("monarch_hpc."):
        if isinstance(getattr(value, "__dict__", None), dict):
            yield from _parts(vars(value))
        for cls in type(value).__mro__:
            if not _is_library(cls.__module__):
                for name, method in vars(cls).items():
                    if isinstance(method, FunctionType):
                        yield "item", vars(cls), name


def _is_hosted(value: Any) -> bool:
    return type(value).__module__.startswith("monarch_hpc.tensor.training.") and hasattr(value, "send_changes")


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in ("builtins", "monarch_hpc", "torch")


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
    """

    def __init__(self, reached: Reached, externals: Iterable[int], volatile: set[tuple[int, Any]]) -> None:
        edges: dict[Any, tuple[Edge, Any]] = {_hashable(edge): (edge, _get(edge)) for edge in reached.modules.values()}
        self._tensors: list[tuple[MeshTensor, Meta, int]] = []
        for number in externals:
            tensor, path = reached.tensors[number]
            self._tensors.append((tensor, tensor._m, number))
            edges.update((_hashable(edge), (edge, _get(edge))) for edge in path)
        self._edges = _Held(edges.values())
        self._scalars = _Held(found for key, found in reached.scalars.items() if key not in volatile)
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
        return (self._scalars.are_same() or self._scalars.are_equal()) and self._sizes.are_same()


class _Held:
    """Edges, and what they led to.

    Args:
        edges: edges and values.
    """

    def __init__(self, edges: Iterable[tuple[Edge, Any]]) -> None:
        self._all = list(edges)
        items = [(edge, value) for edge, value in self._all if edge[0] == "item"]
        self._holders = [holder for (_, holder, _), _ in items]
        self._keys = [key for (_, _, key), _ in items]
        self._values = [value for _, value in items]
        self._sized = [holder for (kind, holder, _), _ in self._all if kind == "len"]
        self._sizes = [value for (kind, _, _), value in self._all if kind == "len"]
        self._cells = [(edge, value) for edge, value in self._all if edge[0] == "cell"]

    def are_same(self) -> bool:
        """Whether they lead to the same objects; of thousands, many in each call of a step, so without a loop here."""
        try:
            found = all(map(is_, map(getitem, self._holders, self._keys), self._values))
        except (LookupError, ValueError):
            return False
        return (
            found
            and list(map(len, self._sized)) == self._sizes
            and all(_get(edge) is value for edge, value in self._cells)
        )

    def are_equal(self) -> bool:
        """Whether they lead to equal objects of the same types."""
        for edge, value in self._all:
            given = _get(edge)
            if given is not value and (given.__class__ is not value.__class__ or given != value):
                return False
        return True
