"""All that can be done with mesh tensors beyond torch's functions: gradients, reductions, copies between ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from monarch_hpc.core.arguments import check_instance
from monarch_hpc.core.errors import DeviceMeshError
from monarch_hpc.core.shape import Region, contiguous_strides
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.backward import issue_backward
from monarch_hpc.tensor.ops.dispatch import dispatch, put
from monarch_hpc.tensor.ops.meta import GraphCall, GraphLeaf, Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.sharded.calls import call_by_name, derived
from monarch_hpc.tensor.sharded.spec import place_dims
from monarch_hpc.tensor.stream import records
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import DTYPES, CollectiveSpec, CoordinateSpec, Ref, TransferSpec
from monarch_hpc.tensor.streams.loans import check_use, share
from monarch_hpc.tensor.worker.sharing.arrival import arrive

__all__ = ["MeshOperations", "coordinate", "groups_along"]

_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "stack")
_BITWISE = frozenset({"band", "bor", "bxor"})


class MeshOperations:
    """The operations of the tensors of one engine.

    Args:
        view_of: finds the view of a mesh, see `tensor.opening`.
        view_at: finds the view of some ranks of the engine's own mesh.
        sharded_at: finds the view of the tensors that are sharded over them.
        on_stream: finds the view of some ranks of the same procs in a stream.
        mesh: number of the mesh of procs.
    """

    def __init__(
        self,
        view_of: Callable[[ProcMesh], View],
        view_at: Callable[[Region], View],
        sharded_at: Callable[[Region], View],
        on_stream: Callable[[Any, Region], View],
        mesh: int,
    ) -> None:
        self.on_stream = on_stream
        self._view_of = view_of
        self.view_at = view_at
        self.sharded_at = sharded_at
        self._mesh = mesh

    def dispatch(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Issue one of torch's functions."""
        return dispatch(function, args, kwargs)

    # ---- gradients ----

    def backward(self, loss: MeshTensor, gradient: Any, retain_graph: bool) -> None:
        """Issue a backward pass; see `MeshTensor.backward`."""
        if not loss._m.grads:
            raise RuntimeError("this mesh tensor does not require a gradient, and was not made of one that does")
        if gradient is None and loss.numel() != 1:
            raise RuntimeError(f"backward() needs a gradient for a tensor of shape {tuple(loss.shape)}: pass gradient=")
        view: View = loss._h.view
        if gradient is not None and gradient.__class__ is not MeshTensor:
            gradient = put(torch.as_tensor(gradient), view)
        issue_backward(loss, gradient, retain_graph)

    def backward_all(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Issue backward passes, as `torch.autograd.backward` takes them."""
        losses = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        given = (grad_tensors,) if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else grad_tensors
        gradients = (None,) * len(losses) if grad_tensors is None else tuple(given)
        if len(gradients) != len(losses):
            raise RuntimeError(f"backward() of {len(losses)} tensors got {len(gradients)} gradients: pass one for each")
        for loss in losses:
            if loss.__class__ is not MeshTensor or not loss._m.grads:
                raise RuntimeError(f"backward() needs mesh tensors that require gradients, not {loss!r}")
        for place, (loss, gradient) in enumerate(zip(losses, gradients, strict=True), 1):
            # They may share a part of the graph, which the last one frees.
            loss.backward(gradient, bool(retain_graph) or place < len(losses), create_graph, inputs)

    def get_grad(self, tensor: MeshTensor) -> MeshTensor | None:
        """The gradient of a leaf; see `MeshTensor.grad`."""
        leaf = tensor._n
        if leaf.__class__ is GraphLeaf:
            _note_leaf(tensor._h.view, leaf)
        if leaf.__class__ is not GraphLeaf or not leaf.has_grad:
            return None
        if leaf.grad is None:
            view: View = tensor._h.view
            meta = tensor._m.with_grads(False, leaf=True)
            number = view.engine.emit(view, [records.GET_GRAD, tensor._h.number, -1], 1)
            leaf.grad = MeshTensor.make(number, view, meta)
        found: MeshTensor = leaf.grad
        return found

    def set_grad(self, tensor: MeshTensor, value: MeshTensor | None) -> None:
        """Replace the gradient of a leaf; see `MeshTensor.grad`."""
        leaf, view = tensor._n, tensor._h.view
        if leaf.__class__ is GraphLeaf:
            _note_leaf(view, leaf)
        if value is None:
            if leaf.__class__ is GraphLeaf and leaf.has_grad:
                leaf.has_grad, leaf.grad = False, None
                drop_grad(view, tensor._h.number)
            return
        if leaf.__class__ is not GraphLeaf:
            raise RuntimeError("only a leaf that requires a gradient can be given one")
        if value.__class__ is not MeshTensor:
            value = put(value, view)
        if value.shape != tensor.shape or value.dtype != tensor.dtype or value._h.view is not view:
            raise RuntimeError(f"the gradient of {tensor!r} must be like it, not {value!r}")
        check_use(value)
        view.engine.emit(view, [records.SET_GRAD, tensor._h.number, value._h.number])
        leaf.has_grad, leaf.grad = True, value

    def require_grad(self, tensor: MeshTensor, flag: bool) -> None:
        """Change whether a leaf requires a gradient."""
        if not tensor._m.leaf:
            raise RuntimeError("only leaves of the graph can change requires_grad: use detach()")
        if flag and not (tensor.is_floating_point() or tensor.is_complex()):
            raise RuntimeError(f"only floats and complex numbers can require a gradient, not {tensor.dtype}")
        view: View = tensor._h.view
        view.engine.emit(view, [records.REQUIRE_GRAD, tensor._h.number, int(flag)])
        tensor._m = tensor._m.with_grads(flag, leaf=True)
        tensor._n = GraphLeaf(tensor._h.number) if flag else None

    def set_data(self, tensor: MeshTensor, value: MeshTensor) -> None:
        """Replace the value of a tensor; see `MeshTensor.data`."""
        view: View = tensor._h.view
        if value.__class__ is not MeshTensor:
            value = put(value, view)
        check_use(tensor, writes=True)
        check_use(value)
        kind = 0 if not tensor._m.grads else 1 if tensor._m.leaf else 2
        view.engine.emit(view, [records.SET_DATA, tensor._h.number, value._h.number, kind])
        share(tensor, value)
        meta = value._m
        tensor._m = meta.with_grads(tensor._m.grads, leaf=tensor._m.leaf)

    # ---- between ranks ----

    def reduce(
        self, tensor: MeshTensor, dims: Any, reduction: str, scatter: bool, out: MeshTensor | None, inplace: bool
    ) -> MeshTensor:
        """Issue a reduction; see `MeshTensor.reduce`."""
        view: View = tensor._h.view
        region, meta = view.region, tensor._m
        check_use(tensor, writes=inplace)
        names = (dims,) if isinstance(dims, str) else tuple(dims) or region.extent.names
        region.extent.check_known(names)
        if len(set(names)) < len(names):
            raise ValueError(f"a dimension stands twice in {names}")
        _check_reduction(meta, names, reduction, scatter)
        num = math.prod(region.extent[name] for name in names)
        shape = tuple(meta.shape)
        if scatter:
            if not shape or shape[0] != num:
                raise ValueError(f"scatter=True needs a tensor whose first size is {num}, as {names[0]}; it is {shape}")
            shape = shape if reduction == "stack" else shape[1:]
        elif reduction == "stack":
            shape = (num, *shape)
        if inplace and shape != tuple(meta.shape):
            raise ValueError(f"reduce_ cannot change the shape {tuple(meta.shape)} to {shape}: use reduce")
        if out is not None and (tuple(out.shape) != shape or out.dtype != meta.dtype or out._h.view is not view):
            raise ValueError(f"out= must be a {meta.dtype} of shape {shape} on the same ranks, not {out!r}")
        device = meta.device.type
        key = "reduce", region, names, reduction, scatter, device
        spec = view.engine.template(
            key, lambda: CollectiveSpec(groups_along(region, names), reduction, scatter, device), view
        )
        typed = [DTYPES.index(str(meta.dtype).removeprefix("torch.")), len(meta.shape), *meta.shape]
        head = [spec, tensor._h.number]
        if inplace:
            view.engine.emit(view, [*head, 0, 1, *typed])
            return tensor
        made = Meta.make(shape, contiguous_strides(shape), meta.dtype, meta.device, False, True)
        number = view.engine.emit(view, [*head, -1, 0, *typed], 1)
        result = MeshTensor.make(number, view, made)
        if out is None:
            return result
        with torch.no_grad():
            out.copy_(result)
        return out

    def slice_mesh(self, tensor: MeshTensor, selection: dict[str, int | slice]) -> MeshTensor:
        """The part of a tensor on some ranks; see `MeshTensor.slice_mesh`."""
        view = self.view_at(tensor._h.view.region.slice(**selection))
        if tensor._m.grads and torch.is_grad_enabled():
            raise TypeError("slice_mesh of a tensor that requires a gradient: use t.detach().slice_mesh(...)")
        check_use(tensor)
        meta = tensor._m.with_grads(False, leaf=True)
        number = view.engine.emit(view, [records.ALIAS, tensor._h.number, -1], 1)
        view.engine.flush()
        made = MeshTensor.make(number, view, meta)
        share(made, tensor)
        return made

    def to_mesh(self, tensor: MeshTensor, mesh: Any, stream: Any) -> MeshTensor:
        """Copy a tensor to other ranks; see `MeshTensor.to_mesh`."""
        check_instance("mesh", mesh, ProcMesh, "a mesh of procs, or a slice of one")
        source: View = tensor._h.view
        target = self._view_of(mesh)
        if target.engine is not source.engine:
            raise ValueError(f"{mesh!r} is of other procs than {source.name}: read the value and send it")
        meta = tensor._m
        if stream is not None and self.on_stream(stream, target.region).engine is not source.engine:
            return stream.borrow(self._send(tensor, target), mutable=True)[0]  # type: ignore[no-any-return]
        if not meta.grads or not torch.is_grad_enabled():
            return self._send(tensor, target)
        if len(target.ranks) != len(source.ranks):
            raise TypeError(
                f"to_mesh of a tensor that requires a gradient, from {len(source.ranks)} to {len(target.ranks)} ranks: "
                "gradients come back from one rank to one rank; use t.detach().to_mesh(...)"
            )
        call = GraphCall([tensor], lambda gradients: [self._send(gradients[0], source)])
        return call.lead_to(self._send(tensor, target))  # type: ignore[no-any-return]

    def _send(self, tensor: MeshTensor, target: View) -> MeshTensor:
        """Copy a tensor to the ranks of a view, unknown to autograd."""
        check_use(tensor)
        source, meta = tensor._h.view, tensor._m
        pairs = _pairs(source.region, target.region)
        engine, tag = source.engine, next(_tags)
        typed = [tag, DTYPES.index(str(meta.dtype).removeprefix("torch.")), len(meta.shape), *meta.shape]
        device = meta.device.type
        key = "to_mesh", source.region, target.region, device
        shape = tuple(meta.shape)
        made = Meta.make(shape, contiguous_strides(shape), meta.dtype, meta.device, False, True)
        with engine.lock:
            spec = engine.template(key, lambda: TransferSpec(pairs, device), source)
            engine.emit(source, [spec, tensor._h.number, 0, *typed])
            spec = engine.template(key, lambda: TransferSpec(pairs, device), target)
            number = engine.emit(target, [spec, 0, -1, *typed], 1)
            engine.flush()
        return MeshTensor.make(number, target, made)

    # ---- conversions ----

    def to_global(self, tensor: MeshTensor, spec: Any) -> MeshTensor:
        """Issue a conversion; see `MeshTensor.to_global`."""
        view = self.sharded_at(tensor._h.view.region)
        extent = view.region.extent
        dims = place_dims(spec, tensor.dim(), extent)
        shape = list(tensor.shape)
        for dim, size in zip(dims, extent.shape, strict=True):
            if dim >= 0:
                shape[dim] *= size
        made = Meta.make(tuple(shape), contiguous_strides(shape), tensor.dtype, tensor.device, False, True)
        arguments = [Ref(tensor._h.number), dims, made.shape, made.stride, False]
        number = call_by_name(view, "global_from_shards", arguments, [tensor._h.number])
        return derived(number, view, tensor, made, sharded=view)

    def placements(self, tensor: MeshTensor) -> tuple[Any, ...]:
        """Refuse: see `MeshTensor.placements`."""
        raise _not_sharded("placements")

    def redistribute(self, tensor: MeshTensor, spec: Any) -> MeshTensor:
        """Refuse: see `MeshTensor.redistribute`."""
        raise _not_sharded("redistribute")

    def full_tensor(self, tensor: MeshTensor) -> torch.Tensor:
        """Refuse: see `MeshTensor.full_tensor`."""
        raise _not_sharded("full_tensor")

    def shard(self, tensor: MeshTensor, place: dict[str, int]) -> torch.Tensor:
        """Refuse: see `MeshTensor.shard`."""
        raise _not_sharded("shard")

    def to_local(self, tensor: MeshTensor, spec: Any) -> MeshTensor:
        """Refuse: see `MeshTensor.to_local`."""
        raise _not_sharded("to_local")

    def item_async(self, tensor: MeshTensor) -> Any:
        """Refuse: see `MeshTensor.item_async`."""
        raise _not_sharded("item")

    def lend(self, tensor: MeshTensor) -> tuple[Any, ...]:
        """Issue a copy for an actor; return how it is rebuilt there."""
        check_use(tensor)
        return self._lend(tensor._h.view, tensor._h.number)

    def _lend(self, view: View, number: int) -> tuple[Any, ...]:
        token = view.engine.emit(view, [records.LEND, number, -1], 1)
        view.engine.flush()
        return arrive, (view.engine.key, token, self._mesh, view.region, view.engine.config.collective_s)


def _not_sharded(name: str) -> TypeError:
    return TypeError(
        f"{name} of a mesh tensor: each rank has a value of its own; read one with fetch_shard(t).result() or "
        "inspect(t), or make a sharded tensor of them with t.to_global(spec)"
    )


def _note_leaf(view: View, leaf: GraphLeaf) -> None:
    if view.engine.recorder is not None:
        view.engine.recorder.note_leaf(leaf)


def drop_grad(view: View, leaf: int) -> None:
    """Issue the end of a gradient; those of a broken mesh end when it is healed."""
    recovery = view.engine.recovery
    try:
        view.engine.emit(view, [records.NO_GRAD, leaf])
    except DeviceMeshError:
        if recovery is None:
            raise
        return
    if recovery is not None:
        recovery.note_harmless()


_tags = itertools.count(1)


def coordinate(view: View, name: str) -> MeshTensor:
    """The coordinate of each rank along a dimension of a view, as an integer.

    Raises:
        KeyError: no dimension of that name.
    """
    region = view.region
    region.extent.check_known((name,))
    places = {region.base_rank(rank): region.extent.point(rank)[name] for rank in range(len(region))}
    spec = view.engine.template(("rank", region, name), lambda: CoordinateSpec(places), view)
    number = view.engine.emit(view, [spec, -1], 1)
    return MeshTensor.make(number, view, Meta.make((), (), torch.int64, torch.device("cpu"), False, True))


def _check_reduction(meta: Meta, names: tuple[str, ...], reduction: str, scatter: bool) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; it is one of {', '.join(_REDUCTIONS)}")
    if len(names) > 1 and (scatter or reduction == "stack"):
        raise ValueError(f"scatter=True and 'stack' take one dimension, not {names}")
    if meta.grads and torch.is_grad_enabled():
        raise TypeError("reduce of a tensor that requires a gradient: reduce t.detach(), or the gradients: p.grad")
    if str(meta.dtype).removeprefix("torch.") not in DTYPES:
        raise TypeError(f"a tensor of {meta.dtype} cannot be sent between ranks; use one of {', '.join(DTYPES)}")
    if reduction == "avg" and not (meta.dtype.is_floating_point or meta.dtype.is_complex):
        raise TypeError(f"the average of {meta.dtype} is not one: convert it to floats, or use 'sum'")
    if reduction in _BITWISE and (meta.dtype.is_floating_point or meta.dtype.is_complex):
        raise TypeError(f"{reduction} combines the bits of integers, not {meta.dtype}")


def groups_along(region: Region, names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The ranks that differ only in their coordinates along some dimensions, in the order of these coordinates."""
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for rank in range(len(region)):
        point = region.extent.point(rank)
        others = tuple(place for name, place in point.items() if name not in names)
        groups.setdefault(others, []).append((tuple(point[name] for name in names), region.base_rank(rank)))
    return tuple(tuple(rank for _, rank in sorted(group)) for group in groups.values())


def _pairs(source: Region, target: Region) -> tuple[tuple[int, int], ...]:
    sizes, others = source.extent.to_dict(), target.extent.to_dict()
    for name, size in sizes.items():
        if others.get(name) != size:
            raise ValueError(
                f"dimension {name} has {size} ranks here and {others.get(name, 'none')} in the target: slice_mesh it"
            )
    pairs = []
    for rank in range(len(target)):
        point = target.extent.point(rank)
        chosen = source.slice(**{name: point[name] for name in sizes})
        pairs.append((chosen.base_rank(0), target.base_rank(rank)))
    return tuple(pairs)
