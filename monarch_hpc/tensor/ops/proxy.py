"""Mesh tensors as the program sees them: shape and type of values that live on the ranks of a mesh.

They intercept torch's functions above autograd (`__torch_function__`), so the graph is recorded where the values are.
What a program asks most, shapes and types, is answered by Python properties without interception.
"""

from __future__ import annotations

import weakref
from typing import Any, NoReturn, Self

import torch

from monarch_hpc.core.shape import Region
from monarch_hpc.tensor.ops.meta import Handle, Meta, TensorView

__all__ = ["MeshTensor", "first_tensor"]


def _refused(name: str, advice: str) -> Any:
    def refuse(self: MeshTensor, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError(f"{name} of a mesh tensor: {advice}")

    refuse.__name__ = name
    return refuse


_READ = "read the value with fetch_shard(t).result() or inspect(t), or full_tensor() if it is sharded"
_HOOK = "hooks would have to run on the ranks; write the computation into remote() functions or an autograd.Function"

_make: Any = torch.Tensor._make_subclass


class MeshTensor(torch.Tensor):
    """A tensor with a value of its own on each rank of a mesh; made by torch's functions in ``with mesh.activate()``.

    Attributes:
        _m: its description.
        _h: its value.
        _n: its place in autograd's graph: a `GraphLeaf`, or a tuple of such places.
        _aliases: weak references to tensors that share its memory; None if there are none.
        _is_written: whether an operation has written to it.
        _is_window: whether it was made to share the memory of another one.
        _memory: what it has in common with others that share its memory, see `streams.loans`; None if nothing.
    """

    _m: Meta
    _h: Handle
    _n: Any
    _aliases: list[weakref.ref[MeshTensor]] | None = None
    _is_written = False
    _is_window = False
    _memory: Any = None

    @staticmethod
    def make(number: int, view: TensorView, meta: Meta, node: Any = None) -> MeshTensor:
        """A tensor for the value *number*."""
        made: MeshTensor = _make(MeshTensor, meta.tensor)
        made._h = Handle(number, view)
        made._m = meta
        made._n = node
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and args[0].__class__ is MeshTensor:
            return args[0]._h.view.operations.dispatch(function, args, kwargs or {})
        found = first_tensor((args, kwargs))
        assert found is not None
        return found._h.view.operations.dispatch(function, args, kwargs or {})

    # ---- shape and type ----

    shape = property(lambda self: self._m.shape)
    dtype = property(lambda self: self._m.dtype)
    device = property(lambda self: self._m.device)
    ndim = property(lambda self: len(self._m.shape))
    is_leaf = property(lambda self: self._m.leaf)
    layout = property(lambda self: torch.strided)
    is_cuda = property(lambda self: self._m.device.type == "cuda")
    is_cpu = property(lambda self: self._m.device.type == "cpu")
    is_meta = property(lambda self: False)
    is_sparse = property(lambda self: False)
    is_quantized = property(lambda self: False)
    is_nested = property(lambda self: False)
    nbytes = property(lambda self: self._m.shape.numel() * self._m.dtype.itemsize)
    itemsize = property(lambda self: self._m.dtype.itemsize)
    grad_fn = property(lambda self: None if self._m.leaf else "on the ranks")
    output_nr = property(lambda self: 0)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one of its sizes."""
        return self._m.shape if dim is None else self._m.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        """The strides, or one of them."""
        return self._m.stride if dim is None else self._m.stride[dim]

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self._m.shape)

    def numel(self) -> int:
        """The number of elements."""
        return self._m.shape.numel()

    nelement = numel

    def element_size(self) -> int:
        """Bytes of an element."""
        return self._m.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether elements are floats."""
        return self._m.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether elements are complex."""
        return self._m.dtype.is_complex

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        """Whether the memory is in order."""
        with torch._C.DisableTorchFunction():
            return self._m.tensor.is_contiguous(memory_format=memory_format)

    def __len__(self) -> int:
        if not self._m.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._m.shape[0]

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no types
        view = self._h.view
        grads = ", requires_grad=True" if self._m.grads else ""
        sizes = tuple(self._m.shape)
        over = "sharded over" if view.mesh else "on"
        return f"MeshTensor({sizes}, {self._m.dtype}, {over} {view.name} {view.region.extent}{grads})"

    def __format__(self, spec: str) -> str:
        return repr(self)

    @property
    def mesh(self) -> Region:
        """The ranks that it is on, as a view of the mesh of procs."""
        region: Region = self._h.view.region
        return region

    # ---- gradients ----

    @property
    def requires_grad(self) -> bool:
        """Whether autograd records operations on it."""
        return self._m.grads

    @requires_grad.setter
    def requires_grad(self, flag: bool) -> None:
        self.requires_grad_(flag)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Change whether autograd records operations on it."""
        if requires_grad != self._m.grads:
            self._h.view.operations.require_grad(self, requires_grad)
        return self

    @property
    def grad(self) -> Any:
        """The gradient that backward passes have summed up here."""
        return self._h.view.operations.get_grad(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        self._h.view.operations.set_grad(self, value)

    @property
    def data(self) -> Any:
        """The same value, unknown to autograd."""
        with torch.no_grad():
            return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        self._h.view.operations.set_data(self, value)

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        """Compute gradients on all ranks: one message, without waiting.

        Raises:
            NotImplementedError: *create_graph* or *inputs* is given: use `torch.autograd.grad`.
        """
        if create_graph or inputs is not None:
            raise NotImplementedError("backward(create_graph=, inputs=) of a mesh tensor: use torch.autograd.grad")
        self._h.view.operations.backward(self, gradient, bool(retain_graph))

    retain_grad = _refused("retain_grad", "gradients of inner values come from torch.autograd.grad(loss, [value])")
    register_hook = _refused("register_hook", _HOOK)
    register_post_accumulate_grad_hook = _refused("register_post_accumulate_grad_hook", _HOOK)

    # ---- between ranks ----

    def reduce(
        self,
        dims: str | tuple[str, ...] = (),
        reduction: str = "sum",
        scatter: bool = False,
        out: MeshTensor | None = None,
        mesh: Any = None,
    ) -> MeshTensor:
        """Combine the values of all ranks along dimensions of the mesh; each rank gets the result.

        Args:
            dims: dimensions of the mesh; all of them if empty. Several only without *scatter*, and not to ``stack``.
            reduction: ``sum``, ``avg``, ``product``, ``min``, ``max``, ``band``, ``bor``, ``bxor``, or ``stack``, which
                makes the rank's place the first dimension.
            scatter: whether each rank gets only its row of the result: the first dimension must have the mesh's size.
            out: written to instead of a new tensor.
            mesh: where the result is, as of `to_mesh`; along reduced dimensions that it does not have, of the first
                rank. The same ranks if None.

        Raises:
            KeyError: no dimension of that name.
            TypeError: *out* and *mesh* are given, the tensor requires a gradient, or its type cannot be reduced so.
            ValueError: another reduction, a wrong shape, or several dimensions where one is needed.
        """
        if mesh is not None and out is not None:
            raise TypeError("reduce(out=, mesh=): the result is written to out, or is on mesh; give one")
        made: MeshTensor = self._h.view.operations.reduce(self, dims, reduction, scatter, out, False)
        if mesh is None:
            return made
        kept = getattr(getattr(mesh, "region", None), "extent", {})
        reduced = (dims,) if isinstance(dims, str) else tuple(dims) or self.mesh.extent.names
        dropped = {name: 0 for name in reduced if name not in kept}
        return (made.slice_mesh(**dropped) if dropped else made).to_mesh(mesh)

    def reduce_(self, dims: str | tuple[str, ...] = (), reduction: str = "sum") -> MeshTensor:
        """Like `reduce`, into this tensor itself."""
        return self._h.view.operations.reduce(self, dims, reduction, False, None, True)  # type: ignore[no-any-return]

    def slice_mesh(self, **selection: int | slice) -> MeshTensor:
        """The same value on some of the ranks only: ``t.slice_mesh(dp=0)``; shares its memory there."""
        return self._h.view.operations.slice_mesh(self, selection)  # type: ignore[no-any-return]

    def to_mesh(self, mesh: Any, stream: Any = None) -> MeshTensor:
        """A copy on the ranks of another mesh of the same procs.

        Ranks are matched by the names of dimensions. A dimension that only *mesh* has gets a copy at each place.
        Gradients flow back from a mesh of as many ranks: `backward()` goes through the ranks in turn.

        Args:
            mesh: the mesh, or a slice of one.
            stream: what the copy belongs to; the tensor's own stream if None.

        Raises:
            TypeError: *mesh* is not a mesh, or the tensor requires a gradient, and *mesh* has more ranks or *stream* is
                given.
            ValueError: a dimension is missing in *mesh*, or has another size there, or the procs are others.
        """
        return self._h.view.operations.to_mesh(self, mesh, stream)  # type: ignore[no-any-return]

    # ---- sharded tensors ----

    @property
    def placements(self) -> tuple[Any, ...]:
        """How a sharded tensor is placed along each dimension of its mesh, as DTensor says it. Asks the ranks.

        Raises:
            TypeError: each rank has a value of its own.
        """
        return self._h.view.operations.placements(self)  # type: ignore[no-any-return]

    def redistribute(self, spec: Any = None) -> MeshTensor:
        """The same value with another sharding specification, see `distribute`; gradients flow back.

        Raises:
            KeyError: the mesh has no dimension of a name.
            TypeError: each rank has a value of its own.
            ValueError: *spec* is too long, or names a dimension twice.
        """
        return self._h.view.operations.redistribute(self, spec)  # type: ignore[no-any-return]

    def full_tensor(self) -> torch.Tensor:
        """Wait for the whole value of a sharded tensor, as a tensor of the program.

        Raises:
            DeviceMeshError: a rank is gone.
            TypeError: each rank has a value of its own.
            Exception: an operation that the value depends on failed.
        """
        return self._h.view.operations.full_tensor(self)  # type: ignore[no-any-return]

    def shard(self, **coords: int) -> torch.Tensor:
        """Wait for the part of a sharded tensor on the rank at *coords*, 0 where not named; errors as `full_tensor`."""
        return self._h.view.operations.shard(self, coords)  # type: ignore[no-any-return]

    def to_local(self, spec: Any = None) -> MeshTensor:
        """Each rank's shard, in placement *spec*, as a tensor with a value for each rank; gradients flow back.

        A gradient of what several ranks have alike must be alike on them.

        Raises:
            KeyError: the mesh has no dimension of a name.
            TypeError: each rank has a value of its own already.
            ValueError: *spec* is wrong, or the shards have different sizes.
        """
        return self._h.view.operations.to_local(self, spec)  # type: ignore[no-any-return]

    def to_global(self, spec: Any = None) -> MeshTensor:
        """The sharded tensor whose shards are the values of the ranks; gradients flow back.

        Along dimensions of the mesh that *spec* does not name, the ranks must have the same value.

        Raises:
            KeyError: the mesh has no dimension of a name.
            TypeError: the tensor is sharded.
            ValueError: *spec* is wrong.
        """
        return self._h.view.operations.to_global(self, spec)  # type: ignore[no-any-return]

    def item_async(self) -> Any:
        """The future of the only element of a sharded tensor; errors as `full_tensor`.

        Raises:
            RuntimeError: there are more elements.
        """
        return self._h.view.operations.item_async(self)

    def item(self) -> Any:
        """Wait for the only element of a sharded tensor; errors as `item_async`."""
        return self.item_async().get()

    def tolist(self) -> Any:
        """Wait for the elements of a sharded tensor."""
        return self.full_tensor().tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    # ---- what cannot be ----

    numpy = _refused("numpy", _READ)
    __array__ = _refused("__array__", _READ)
    __index__ = _refused("__index__", _READ)
    __complex__ = _refused("__complex__", _READ)
    __contains__ = _refused("__contains__", _READ)
    data_ptr = _refused("data_ptr", "its memory is on the ranks; use it in a remote() function")

    def __deepcopy__(self, memo: dict[int, Any]) -> MeshTensor:
        if not self._m.leaf:
            raise RuntimeError("only leaves of the graph can be copied by copy.deepcopy: detach() it first")
        with torch.no_grad():
            copied: Any = self.detach().clone()
        copied.requires_grad_(self._m.grads)
        if getattr(self, "_is_param", False):
            copied._is_param = True  # what makes it an instance of Parameter
        memo[id(self)] = copied
        made: MeshTensor = copied
        return made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a mesh tensor cannot be pickled: pass it to an actor's endpoint, or save inspect(t), its value on one rank"
        )


def first_tensor(tree: Any) -> MeshTensor | None:
    """The first mesh tensor in nested lists, tuples and dicts."""
    if tree.__class__ is MeshTensor:
        found: MeshTensor = tree
        return found
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return None
    return next((one for part in tree if (one := first_tensor(part)) is not None), None)
