"""Encodes an operation as a template and the integers of its records.

Integers and floats are integers of the record, so that a changing index, length or step size needs no new template.
"""

from __future__ import annotations

from typing import Any

import torch

from monarch_hpc.tensor.ops.names import name_of
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.records import OpSpec, bits_of
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps

__all__ = ["CONSTANTS", "KeyBuilder", "LocalTensor", "foreign", "render", "template_key"]

CONSTANTS = frozenset(
    {str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format, type(Ellipsis), complex, type}
)
"""Types of arguments that are part of a template."""

_MAX_INT = 1 << 63


class LocalTensor(Exception):
    """An operation has an argument that is a tensor of the program's own."""


class KeyBuilder:
    """Collects the cache key and the integers of an operation's arguments; the slow half of `tensor.ops.dispatch`.

    Attributes:
        key: the cache key.
        ints: the integers.
        nodes: places in autograd's graph of arguments that require gradients.
        view: the ranks that the arguments are on; None if none is a mesh tensor.
    """

    __slots__ = ("ints", "key", "nodes", "view")

    def __init__(self, key: list[Any], ints: list[int], nodes: list[Any], view: Any) -> None:
        self.key = key
        self.ints = ints
        self.nodes = nodes
        self.view = view

    def add(self, value: Any) -> None:
        """Add an argument.

        Raises:
            LocalTensor: it is, or holds, a tensor of the program's own.
            TypeError: it cannot be part of a cached operation.
            ValueError: it is on other ranks than the arguments before it.
        """
        kind = value.__class__
        key = self.key
        if kind is MeshTensor:
            view = value._h.view
            if view is not self.view:
                if self.view is not None:
                    raise foreign(value, self.view)
                self.view = view
            self.ints.append(value._h.number)
            key.append(value._m)
            if value._m.grads:
                self.nodes.append(value._n)
        elif kind is int:
            key.append(value)
            self.ints.append(value)
        elif kind is float:
            key.append(float)
            self.ints.append(bits_of(value))
        elif kind is bool:
            key += (bool, value)
        elif kind in CONSTANTS:
            key.append(value)
        elif kind is list or kind is tuple or kind is torch.Size:
            key += (list if kind is list else tuple, len(value))
            for part in value:
                self.add(part)
        elif kind is slice:
            key.append(slice)
            self.add(value.start)
            self.add(value.stop)
            self.add(value.step)
        elif isinstance(value, dict):
            key += (dict, len(value))
            for name, part in value.items():
                key.append(name)
                self.add(part)
        elif isinstance(value, torch.Tensor):
            raise LocalTensor
        elif isinstance(value, torch.Generator):
            raise TypeError(
                "a generator of the program cannot be used on the ranks: each rank has its own, see "
                "monarch_hpc.tensor.random"
            )
        else:
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"a {kind.__name__} cannot be an argument of an operation on mesh tensors; "
                    "pass it to a remote() function"
                ) from None
            key += (kind, value)


def foreign(value: MeshTensor, view: Any) -> ValueError:
    """The error of an operation with arguments on different ranks."""
    other = value._h.view
    if bool(view.mesh) != bool(other.mesh):
        return ValueError(
            "some of the arguments are sharded, others have a value for each rank: convert them with to_local() or "
            "to_global(spec)"
        )
    if view.engine is not other.engine and view.region == other.region:
        return ValueError(
            f"the arguments belong to different streams, of {view.name} and of {other.name}: a tensor belongs to the "
            "stream that made it, and others borrow it with stream.borrow(t)"
        )
    return ValueError(
        f"the arguments are on different ranks: {view.name} {view.region.extent} and {other.name} "
        f"{other.region.extent}; move one with to_mesh(), or take a part with slice_mesh()"
    )


class _Renderer:
    """Renders arguments as Python source over a record; see `records.OpSpec`."""

    def __init__(self) -> None:
        self.num = 0
        self.refs: list[int] = []
        self.constants: list[Any] = []

    def render(self, value: Any) -> str:
        kind = value.__class__
        if kind is MeshTensor:
            self.num += 1
            self.refs.append(self.num)
            return f"E[a[i+{self.num}]]"
        if kind is int:
            if not -_MAX_INT <= value < _MAX_INT:
                raise OverflowError(f"{value} has more than 64 bits")
            self.num += 1
            return f"a[i+{self.num}]"
        if kind is float:
            self.num += 1
            return f"f(a[i+{self.num}])"
        if kind is list:
            return f"[{','.join(map(self.render, value))}]"
        if kind is tuple or kind is torch.Size:
            return f"({''.join(f'{self.render(part)},' for part in value)})"
        if kind is slice:
            return f"slice({','.join(map(self.render, (value.start, value.stop, value.step)))})"
        if isinstance(value, dict):
            return f"{{{','.join(f'{name!r}:{self.render(part)}' for name, part in value.items())}}}"
        self.constants.append(value)
        return f"K[{len(self.constants) - 1}]"


def render(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    mutated: tuple[int, ...],
    num_outs: int,
    is_tree: bool,
    grad: bool,
    autocast: tuple[tuple[str, Any], ...],
) -> OpSpec:
    """The template of an operation.

    Args:
        mutated: places, among the arguments that are mesh tensors, of those that are written to.
    """
    renderer = _Renderer()
    parts = [renderer.render(arg) for arg in args]
    parts += [f"{name}={renderer.render(value)}" for name, value in kwargs.items()]
    name = name_of(function)
    return OpSpec(
        name,
        b"" if name else _packed(function),
        ",".join(parts),
        tuple(renderer.constants),
        tuple(renderer.refs),
        tuple(renderer.refs[place] for place in mutated),
        renderer.num,
        num_outs,
        is_tree,
        grad,
        autocast,
    )


def _packed(function: Any) -> bytes:
    try:
        return dumps((function,))[0]
    except Exception as error:  # pickling runs user code
        raise refusal({f"the function {function!r}": function}, error) from error


def template_key(spec: OpSpec, function: Any) -> tuple[Any, ...]:
    """A key that is equal for templates that do the same; constants of equal value but other type differ."""
    kinds = tuple(constant.__class__ for constant in spec.constants)
    return (function, kinds, *spec[2:])
