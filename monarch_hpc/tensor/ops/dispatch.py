"""Issues torch's functions on mesh tensors: the path of every operation, of which a cached one costs microseconds."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map, tree_unflatten

from monarch_hpc.tensor.ops.encode import CONSTANTS, KeyBuilder, LocalTensor, foreign, render, template_key
from monarch_hpc.tensor.ops.factories import FACTORIES, from_values
from monarch_hpc.tensor.ops.infer import TENSOR, Inference, autocasts, infer, tensors_in
from monarch_hpc.tensor.ops.meta import GraphLeaf, Meta
from monarch_hpc.tensor.ops.names import shown_name
from monarch_hpc.tensor.ops.proxy import MeshTensor, first_tensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import PUT, bits_of
from monarch_hpc.tensor.stream.sites import site_here
from monarch_hpc.tensor.stream.versions import Versions
from monarch_hpc.tensor.streams.loans import check_operation, share

__all__ = ["dispatch", "put"]

_MAX_ENTRIES = 16384
"""Number of cached operations of a view. Programs with that many have shapes or indices that never return."""

_MAX_KEPT_DEAD = 4
"""Freed values that may wait for the next record that frees: memory on the ranks, for time of the program."""

_FLOAT_SHAPES = frozenset({torch.nn.functional.interpolate, torch.nn.functional.upsample, *FACTORIES})
"""Functions with results whose shape depends on floats."""

_make: Any = torch.Tensor._make_subclass
_grad_enabled = torch.is_grad_enabled
_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


class _Entry:
    """A cached operation; the attributes are those of `Inference`.

    Attributes:
        template: number of its template; -1 if nothing is sent.
        grads: whether a result requires a gradient.
    """

    __slots__ = ("alias", "grads", "inference", "kind", "mutated", "num_outs", "outs", "shares", "template", "value")

    def __init__(self, inference: Inference, template: int) -> None:
        self.inference = inference
        self.template = template
        self.kind = inference.kind
        self.outs = inference.outs
        self.value = inference.value
        self.mutated = inference.mutated
        self.alias = inference.alias
        self.shares = inference.shares
        self.num_outs = len(inference.outs)
        self.grads = any(out.grads for out in inference.outs) or any(meta.grads for _, meta in inference.mutated)


def dispatch(function: Any, args: Any, kwargs: Any, active: View | None = None) -> Any:
    """Issue *function* on the ranks of its arguments, or of *active* if it makes a tensor of none.

    Raises:
        Exception: the arguments do not fit; nothing was sent.
    """
    key: list[Any] = [function, _grad_enabled()]
    ints: list[int] = []
    nodes: list[Any] = []
    view: View | None = None
    values = args
    if kwargs:
        key.append(tuple(kwargs))
        values = (*args, *kwargs.values())
    try:
        for value in values:
            kind = value.__class__
            if kind is MeshTensor:
                handle = value._h
                if handle.view is not view:
                    if view is not None:
                        raise foreign(value, view)
                    view = handle.view
                ints.append(handle.number)
                meta = value._m
                key.append(meta)
                if meta.grads:
                    nodes.append(value._n)
            elif kind is int:
                key.append(value)
                ints.append(value)
            elif kind is float:
                key.append(float)
                ints.append(bits_of(value))
            elif value is None or kind in CONSTANTS:
                key.append(value)
            elif kind is bool:
                key += (bool, value)
            elif kind is tuple and len(value) == 1 and value[0].__class__ is int:  # the shape of a norm
                key += (tuple, 1, *value)
                ints += value
            else:
                builder = KeyBuilder(key, ints, nodes, view)
                builder.add(value)
                view = builder.view
    except LocalTensor:
        return _with_local(function, args, kwargs, active)
    if view is None:
        if active is None or function not in FACTORIES or _is_local_factory(function, kwargs):
            return function(*args, **kwargs)
        if function in FACTORIES and FACTORIES[function] is not None:
            return put(from_values(function, args, kwargs), active, is_constant=_is_number(args))
        view = active
        key.append(torch.get_default_dtype())
    if function in _FLOAT_SHAPES:
        key += ints
    if _any_autocast():
        if view.mesh and view.engine.device != "cpu":
            raise NotImplementedError(
                "autocast around operations on sharded tensors on GPUs, whose types the program infers as of CPUs: "
                "convert the module, as in module.to(torch.bfloat16), or use autocast inside of functions on the ranks"
            )
        key.append(autocasts())
    entry: _Entry | None = view.entries.get(tuple(key))
    if entry is None:
        if function is torch.autograd.backward:
            return view.operations.backward_all(*args, **kwargs)
        entry = _define(function, args, kwargs, tuple(key), view)
    if entry.template < 0:
        return entry.value
    engine = view.engine
    if engine.num_loans:
        check_operation(entry.mutated, args, kwargs)
    with engine.lock:
        if engine.view is not view or not engine.ints or engine.broken is not None:
            engine.use(view)
        record = engine.ints
        number = engine.next_value
        if entry.num_outs:
            engine.next_value = number + entry.num_outs
            record += (entry.template, *ints, number)
        else:
            record += (entry.template, *ints)
        engine.sites.append(site_here(3))  # above `__torch_function__`
        if len(view.dead) >= _MAX_KEPT_DEAD:
            engine.free_dead(view)
        if len(record) >= engine.threshold:
            engine.send()
    node: Any = None
    if entry.grads:
        node = nodes[0] if len(nodes) == 1 and nodes[0].__class__ is tuple else tuple(nodes)
    if entry.mutated:
        if engine.recovery is not None:
            _note_change(engine.recovery, entry, args, kwargs)
        _note_written(entry, args, kwargs, node)
    if entry.kind == "one":
        meta = entry.outs[0]
        if meta.leaf and meta.grads:  # torch.ones(3, requires_grad=True)
            node = GraphLeaf(number)
        made: MeshTensor = MeshTensor.make(number, view, meta, node if meta.grads else None)
        if entry.shares >= 0:
            _note_shared(made, entry.shares, args, kwargs)
        if entry.alias >= 0:
            _note_alias(made, tensors_in((args, kwargs))[entry.alias])
        return made
    if entry.kind == "self":
        first = args[0] if args else None
        return first if entry.value == 0 and first.__class__ is MeshTensor else tensors_in((args, kwargs))[entry.value]
    if entry.kind == "none":
        return None
    parts = [
        MeshTensor.make(number + place, view, meta, node if meta.grads else None)
        for place, meta in enumerate(entry.outs)
    ]
    if entry.shares >= 0:
        for part in parts:
            _note_shared(part, entry.shares, args, kwargs)
    made_all = iter(parts)
    return tree_unflatten([next(made_all) if leaf is TENSOR else leaf for leaf in entry.value], entry.inference.tree)  # type: ignore[arg-type]


def _define(function: Any, args: Any, kwargs: Any, key: tuple[Any, ...], view: View) -> _Entry:
    """Infer what an operation does, and make its template known to the ranks."""
    inference = infer(function, args, dict(kwargs))
    if len(view.entries) >= _MAX_ENTRIES:
        view.entries.clear()
    template = -1
    if inference.kind != "local":
        if function in FACTORIES:
            kwargs = {**kwargs, "dtype": inference.outs[0].dtype}  # the default of the ranks may be another one
        spec = render(
            function,
            args,
            kwargs,
            mutated=tuple(place for place, _ in inference.mutated),
            num_outs=len(inference.outs),
            is_tree=inference.kind == "tree",
            grad=bool(key[1]),
            autocast=autocasts(),
        )
        template = view.engine.template(template_key(spec, function), lambda: spec, view)
    entry = view.entries[key] = _Entry(inference, template)
    return entry


def _with_local(function: Any, args: Any, kwargs: Any, active: View | None) -> Any:
    """Run a function with tensors of the program's own: here if it has no others, else copies of them are sent."""
    known = first_tensor((args, kwargs))
    if known is None:
        if active is not None and function in FACTORIES and FACTORIES[function] is not None:
            return put(from_values(function, args, kwargs), active)
        return function(*args, **kwargs)
    view = known._h.view
    copies: dict[int, tuple[torch.Tensor, MeshTensor]] = {}

    def sent(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.__class__ is MeshTensor:
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf, put(leaf, view)
        return copies[id(leaf)][1]

    args, kwargs = tree_map(sent, (args, kwargs))
    result = dispatch(function, args, kwargs, active)
    for own, copied in copies.values():
        if copied._is_written:
            _write_back(function, own, copied)
            result = own if result is copied else result
    return result


def _write_back(function: Any, own: torch.Tensor, copied: MeshTensor) -> None:
    """Write to a tensor of the program what an operation has written to its copy on the ranks; waits for it."""
    if not copied._h.view.mesh:
        raise TypeError(
            f"{shown_name(function)} writes to a tensor of the program, which has one value, and each rank has its "
            "own: use the form that returns a new tensor"
        )
    value = copied.full_tensor()
    with torch.no_grad(), torch._C.DisableTorchFunction():
        own.copy_(value)


def _is_local_factory(function: Any, kwargs: Any) -> bool:
    """Whether a new tensor belongs to the program: on device ``meta``, or a step counter of torch's optimizers."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "meta":
        return True
    if function is not torch.tensor:
        return False
    # They read their counters, which are the same on all ranks, at every step.
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("monarch_hpc.tensor"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("torch.optim.")


def _is_number(tree: Any) -> bool:
    """Whether nested lists and tuples hold numbers only."""
    if isinstance(tree, (list, tuple)):
        return all(map(_is_number, tree))
    return isinstance(tree, (bool, int, float, complex))


def put(tensor: torch.Tensor, view: View, *, is_constant: bool = False) -> MeshTensor:
    """Send the same value to all ranks of a view.

    Args:
        is_constant: whether the value was made of numbers in the program's code.
    """
    grads = tensor.requires_grad and tensor.is_leaf
    with torch._C.DisableTorchFunction():
        copied = (tensor.detach().cpu() if view.mesh else tensor).detach().clone().requires_grad_(grads)
    meta = Meta.of(copied, copied.device)
    number = view.engine.emit(view, [PUT, -2, -1], 1, copied)
    if view.engine.recorder is not None:
        view.engine.recorder.note_sent(number, tensor, is_constant)
    return MeshTensor.make(number, view, meta, GraphLeaf(number) if grads else None)


def _note_shared(made: MeshTensor, place: int, args: Any, kwargs: Any) -> None:
    """Note that a result shares the memory of the argument at *place*."""
    made._is_window = True
    first = args[0] if args else None
    share(made, first if place == 0 and first.__class__ is MeshTensor else tensors_in((args, kwargs))[place])


def _note_alias(made: MeshTensor, source: MeshTensor) -> None:
    """Note that two tensors share memory: what is written to one changes the other's place in autograd's graph."""
    group = source._aliases
    if group is None:
        group = source._aliases = [weakref.ref(source)]
    elif len(group) > 64:
        group[:] = [one for one in group if one() is not None]
    group.append(weakref.ref(made))
    made._aliases = group


def _note_change(recovery: Versions, entry: _Entry, args: Any, kwargs: Any) -> None:
    """Note a write of the program's own code to what is older than the last version; not of modules, optimizers."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("monarch_hpc.tensor"):
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").startswith("torch."):
        return
    tensors = tensors_in((args, kwargs))
    for place, _ in entry.mutated:
        tensor = tensors[place]
        if tensor._is_window or tensor._h.number < recovery.last_mark:
            recovery.note_change()
            return


def _note_written(entry: _Entry, args: Any, kwargs: Any, node: Any) -> None:
    first = args[0] if args else None
    if len(entry.mutated) == 1 and entry.mutated[0][0] == 0 and first.__class__ is MeshTensor:
        tensors = [first]
    else:
        tensors = tensors_in((args, kwargs))
    for place, meta in entry.mutated:
        tensor = tensors[place]
        changed = tensor._m is not meta
        tensor._m = meta
        tensor._is_written = True
        if not meta.grads or meta.leaf:
            continue
        if tensor._n.__class__ is not GraphLeaf:
            tensor._n = node
        if changed and tensor._aliases is not None:
            for reference in tensor._aliases:
                other = reference()
                if other is not None and other is not tensor and not other._m.grads:
                    other._m = other._m.with_grads(True, leaf=False)
                    other._n = node
