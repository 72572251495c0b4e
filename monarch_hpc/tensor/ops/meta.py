"""Descriptions of mesh tensors: their shapes, the values that they stand for, and their places in autograd's graph."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch_hpc.core.shape import Region

__all__ = [
    "GraphCall",
    "GraphConversion",
    "GraphLeaf",
    "GraphResult",
    "Handle",
    "Meta",
    "TensorOperations",
    "TensorView",
]


class Meta:
    """Shape, strides, types and role in autograd of a value. Interned, so that cache keys compare by identity.

    Attributes:
        grads: whether it requires a gradient.
        leaf: whether it is a leaf of autograd's graph.
        tensor: a tensor without memory of that shape.
    """

    __slots__ = ("__weakref__", "device", "dtype", "grads", "leaf", "shape", "stride", "tensor")
    _interned: ClassVar[weakref.WeakValueDictionary[tuple[Any, ...], Meta]] = weakref.WeakValueDictionary()

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    grads: bool
    leaf: bool
    tensor: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor, device: torch.device, *, grads: bool | None = None) -> Meta:
        """Describe *tensor*, which stands for one on *device*."""
        wanted = tensor.requires_grad if grads is None else grads
        return cls.make(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, device, wanted, tensor.is_leaf)

    @classmethod
    def make(
        cls,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        grads: bool,
        leaf: bool,
    ) -> Meta:
        """The one description with these properties."""
        key = shape, stride, dtype, device, grads, leaf
        found = cls._interned.get(key)
        if found is None:
            found = cls()
            found.shape, found.stride, found.dtype, found.device = torch.Size(shape), stride, dtype, device
            found.grads, found.leaf = grads, leaf
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                found.tensor = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            cls._interned[key] = found
        return found

    def with_grads(self, grads: bool, *, leaf: bool) -> Meta:
        """The same with another role in autograd."""
        return self.make(tuple(self.shape), self.stride, self.dtype, self.device, grads, leaf)

    def replica(self, device: str = "meta") -> torch.Tensor:
        """A new tensor without memory with the same role in autograd; interception must be off."""
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        if self.grads:
            made.requires_grad_()
            if not self.leaf:
                with torch.enable_grad():
                    made = _Inner.apply(made)  # type: ignore[no-untyped-call]  # torch's own
        return made


class _Inner(torch.autograd.Function):
    """A tensor like its argument inside of autograd's graph; a view of the argument could not be written to."""

    @staticmethod
    def forward(_ctx: Any, like: torch.Tensor) -> torch.Tensor:
        """Make it."""
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Pass the gradient on."""
        return grad


class TensorOperations(Protocol):
    """All that can be done with mesh tensors beyond asking for their shape; see `tensor.operations`."""

    def dispatch(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Issue one of torch's functions."""
        ...

    def backward(self, loss: Any, gradient: Any, retain_graph: bool) -> None:
        """Issue a backward pass."""
        ...

    def backward_all(self, *args: Any, **kwargs: Any) -> None:
        """Issue the backward passes of `torch.autograd.backward`."""
        ...

    def get_grad(self, tensor: Any) -> Any:
        """The gradient of a leaf."""
        ...

    def set_grad(self, tensor: Any, value: Any) -> None:
        """Replace the gradient of a leaf."""
        ...

    def require_grad(self, tensor: Any, flag: bool) -> None:
        """Change whether a leaf requires a gradient."""
        ...

    def set_data(self, tensor: Any, value: Any) -> None:
        """Replace the value of a tensor."""
        ...

    def reduce(self, tensor: Any, dims: Any, reduction: str, scatter: bool, out: Any, inplace: bool) -> Any:
        """Issue a reduction."""
        ...

    def slice_mesh(self, tensor: Any, selection: dict[str, int | slice]) -> Any:
        """The part of a tensor on some ranks."""
        ...

    def to_mesh(self, tensor: Any, mesh: Any, stream: Any) -> Any:
        """Copy a tensor to other ranks."""
        ...

    def placements(self, tensor: Any) -> tuple[Any, ...]:
        """How a sharded tensor is placed."""
        ...

    def redistribute(self, tensor: Any, spec: Any) -> Any:
        """Issue a change of placement."""
        ...

    def full_tensor(self, tensor: Any) -> torch.Tensor:
        """Gather a sharded tensor."""
        ...

    def shard(self, tensor: Any, place: dict[str, int]) -> torch.Tensor:
        """Read a shard."""
        ...

    def to_local(self, tensor: Any, spec: Any) -> Any:
        """Make values of the ranks of shards."""
        ...

    def to_global(self, tensor: Any, spec: Any) -> Any:
        """Make shards of values of the ranks."""
        ...

    def item_async(self, tensor: Any) -> Any:
        """Read the only element."""
        ...

    def lend(self, tensor: Any) -> tuple[Any, ...]:
        """Issue a copy for an actor; return how it is rebuilt there."""
        ...


class TensorView(Protocol):
    """The ranks on which a tensor lives; see `tensor.stream.engine`."""

    @property
    def operations(self) -> TensorOperations:
        """What is done with tensors of this view."""
        ...

    @property
    def dead(self) -> deque[int]:
        """Numbers of values to free."""
        ...

    @property
    def region(self) -> Region:
        """The ranks, in the mesh of procs."""
        ...

    @property
    def mesh(self) -> int:
        """Whether its tensors are sharded: not 0."""
        ...

    @property
    def name(self) -> str:
        """The mesh of procs in messages."""
        ...


class Handle:
    """Owns a value on the ranks of a view, which is freed in its turn."""

    __slots__ = ("number", "view")

    def __init__(self, number: int, view: Any) -> None:
        self.number = number
        self.view = view

    def __del__(self) -> None:
        self.view.dead.append(self.number)


class GraphConversion(tuple[Any, ...]):
    """The place in the graph of a tensor that was made of one of the other kind, sharded or not.

    Attributes:
        sharded: the view of the sharded one of the two.
    """

    sharded: Any

    @classmethod
    def of(cls, node: Any, sharded: Any) -> GraphConversion:
        """The place of a tensor made of one at the place *node*."""
        made = cls((node,))
        made.sharded = sharded
        return made


class GraphLeaf:
    """A leaf of the graph: whether it has a gradient is known without asking the ranks.

    Attributes:
        number: the value.
        has_grad: whether its gradient is not None.
        grad: the gradient as a tensor, once it was asked for.
    """

    __slots__ = ("__weakref__", "grad", "has_grad", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.has_grad = False
        self.grad: Any = None


class GraphCall:
    """Where the graph goes on in the program: a copy to other ranks, or a function with a backward of its own.

    The graph on the ranks ends in leaves, its results. Their gradients are taken from there, and what *backward* makes
    of them goes to its sources.

    Args:
        sources: the tensors that it was called with, and that require gradients.
        backward: takes a gradient for each result; returns one for each source, or None.

    Attributes:
        results: weak references to its results, which are dropped with the last tensor that depends on them; with
            description and ranks.
    """

    __slots__ = ("backward", "results", "sources")

    def __init__(self, sources: list[Any], backward: Callable[[list[Any]], Sequence[Any]]) -> None:
        self.sources = sources
        self.backward = backward
        self.results: list[tuple[weakref.ref[GraphResult], Meta, Any]] = []

    def lead_to(self, tensor: Any) -> Any:
        """Make *tensor*, a value without a graph, the next result; return what the program gets."""
        tensor.requires_grad_()
        tensor._n = result = GraphResult(self, tensor._h)
        self.results.append((weakref.ref(result), tensor._m.with_grads(False, leaf=True), tensor._h.view))
        return _Passed.apply(tensor)  # type: ignore[no-untyped-call]  # torch's own


class _Passed(torch.autograd.Function):
    """The same value, which may be written to, as neither a leaf nor a view of one may."""

    @staticmethod
    def forward(_ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        """Share its memory."""
        return leaf.detach()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Pass the gradient on."""
        return gradient


class GraphResult(GraphLeaf):
    """A result of a `GraphCall`: a leaf on its ranks.

    Attributes:
        call: what its gradient goes to.
        received: the value, which is kept for its gradient.
    """

    __slots__ = ("call", "received")

    def __init__(self, call: GraphCall, received: Handle) -> None:
        super().__init__(received.number)
        self.call = call
        self.received = received
