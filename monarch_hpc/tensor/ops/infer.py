"""Infers the results of an operation from the shapes of its arguments, by running it on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map

from monarch_hpc.tensor.ops.meta import Meta
from monarch_hpc.tensor.ops.names import shown_name
from monarch_hpc.tensor.ops.proxy import MeshTensor

__all__ = ["TENSOR", "Inference", "autocasts", "infer", "tensors_in"]

TENSOR = object()
"""Stands for a tensor among the leaves of a result, of which some may be None."""

_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")

_MOVES = frozenset({"to", "cpu", "cuda"})
"""Methods of tensors that move them to devices."""

_SILENT_WRITES: dict[Any, tuple[int, ...]] = {torch._amp_foreach_non_finite_check_and_unscale_: (0, 1)}
"""Places of arguments that functions write to without changing their versions."""


class Inference(NamedTuple):
    """What an operation does.

    Attributes:
        kind: ``one`` (a tensor), ``tree`` (several), ``self`` (returns an argument), ``none``, or ``local`` (no tensor:
            its value is known here).
        outs: descriptions of the resulting tensors.
        value: the value of ``local``; the place of the argument of ``self``; the leaves of ``tree``, with `TENSOR`
            for tensors.
        tree: structure of ``tree``.
        mutated: places of arguments that are written to, with their descriptions after that.
        alias: place of the argument whose memory the result shares, seen by autograd; -1 if there is none.
        shares: place of the argument whose memory results share, seen by autograd or not; -1 if there is none.
    """

    kind: str
    outs: tuple[Meta, ...]
    value: Any
    tree: TreeSpec | None
    mutated: tuple[tuple[int, Meta], ...]
    alias: int
    shares: int = -1


def tensors_in(tree: Any) -> list[MeshTensor]:
    """The mesh tensors in nested lists, tuples and dicts, in the order of a record's arguments."""
    found: list[MeshTensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[MeshTensor]) -> None:
    if tree.__class__ is MeshTensor:
        found.append(tree)
    elif isinstance(tree, dict):
        for part in tree.values():
            _collect(part, found)
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            _collect(part, found)
    elif tree.__class__ is slice:
        _collect((tree.start, tree.stop, tree.step), found)


def autocasts() -> tuple[tuple[str, Any], ...]:
    """The autocasts that are enabled here: device type and element type."""
    return tuple(
        (device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    )


def _grads_of(_outputs: Any, inputs: Any, *_args: Any, **_kwargs: Any) -> Any:
    ins = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    return tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in ins)


_SPECIAL: dict[Any, Callable[..., Any]] = {torch.autograd.grad: _grads_of}
"""Functions that cannot run on tensors without memory."""


def infer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inference:
    """Run *function* on replicas of its arguments.

    Raises:
        NotImplementedError: the shape of a result depends on values.
        Exception: whatever torch raises about these arguments.
    """
    tensors = tensors_in((args, kwargs))
    replicas: dict[int, torch.Tensor] = {}
    device = _device_of(function, args, kwargs, tensors)
    # Autocast does not see tensors on device meta, and costs more on others.
    autocast = bool(autocasts())
    place, faking = (device.type, FakeTensorMode()) if autocast else ("meta", nullcontext())
    with torch._C.DisableTorchFunction(), faking:
        for tensor in tensors:
            if id(tensor) not in replicas:
                replicas[id(tensor)] = tensor._m.replica(place)
        inputs = [replicas[id(tensor)] for tensor in tensors]
        versions = [replica._version for replica in inputs]
        run_args, run_kwargs = tree_map(lambda leaf: _replaced(leaf, replicas, place), (args, kwargs))
        if not tensors or isinstance(run_kwargs.get("device"), str):
            run_kwargs["device"] = place
        called = function
        if getattr(function, "__name__", "") in _MOVES and tensors:
            called, run_args = torch.Tensor.to, _moved(function, run_args, place)
            # Code that asks torch, not the tensor, where it is finds device meta, and means to leave it there.
            if device.type not in ("meta", tensors[0]._m.device.type):
                run_kwargs["copy"] = True  # in place of the tensor itself
        try:
            result = _SPECIAL.get(called, called)(*run_args, **run_kwargs)
        except NotImplementedError as error:
            raise _depends_on_values(function) from error
        except RuntimeError as error:
            if "meta" in str(error) and "tensor" in str(error).lower():
                raise _depends_on_values(function) from error
            raise
        written = _written_by_schema(function, args)
        mutated = tuple(
            (place, after)
            for place, (tensor, replica, version) in enumerate(zip(tensors, inputs, versions, strict=True))
            if replica._version != version
            or id(tensor) in written
            or Meta.of(replica, tensor._m.device) is not tensor._m
            for after in (Meta.of(replica, tensor._m.device),)
        )
        return _describe(function, result, inputs, device, mutated)


def _moved(function: Any, args: tuple[Any, ...], place: str) -> tuple[Any, ...]:
    """The arguments of `torch.Tensor.to` for a method that moves a tensor, which stays where replicas are."""
    if function.__name__ != "to":
        return args[0], place
    return (args[0], place, *args[2:]) if len(args) > 1 and isinstance(args[1], str) else args


def _describe(
    function: Any,
    result: Any,
    inputs: list[torch.Tensor],
    device: torch.device,
    mutated: tuple[tuple[int, Meta], ...],
) -> Inference:
    leaves, tree = tree_flatten(result)
    found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    places = {id(replica): place for place, replica in reversed(list(enumerate(inputs)))}
    if not found:
        return Inference("none" if mutated else "local", (), None if mutated else result, None, mutated, -1)
    if isinstance(result, torch.Tensor) and id(result) in places:
        return Inference("self", (), places[id(result)], None, mutated, -1)
    if all(id(one) in places for one in found):
        return Inference("none", (), None, None, mutated, -1)  # torch._foreach_add_ returns its arguments
    outs = tuple(Meta.of(one, device) for one in found)
    memory = {one.untyped_storage()._cdata for one in found}
    shares = next((place for place, one in enumerate(inputs) if one.untyped_storage()._cdata in memory), -1)
    if not isinstance(result, torch.Tensor):
        values = [TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return Inference("tree", outs, values, tree, mutated, -1, shares)
    alias = -1
    if torch.is_grad_enabled() and function is not torch.Tensor.detach:
        storage = result.untyped_storage()._cdata
        alias = next((n for n, one in enumerate(inputs) if one.untyped_storage()._cdata == storage), -1)
    return Inference("one", outs, None, None, mutated, alias, shares)


def _replaced(leaf: Any, replicas: dict[int, torch.Tensor], place: str) -> Any:
    if leaf.__class__ is MeshTensor:
        return replicas[id(leaf)]
    return torch.device(place) if isinstance(leaf, torch.device) else leaf


def _device_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[MeshTensor]) -> torch.device:
    """The device of results: the one that is asked for, else that of the first argument."""
    asked = kwargs.get("device")
    name = getattr(function, "__name__", "")
    if asked is None and name == "to" and len(args) > 1 and isinstance(args[1], (str, torch.device)):
        asked = args[1]
    if name == "cpu":
        return _CPU
    if name == "cuda":
        return _CUDA
    if asked is not None:
        return torch.device(asked)
    if tensors:
        return tensors[0]._m.device
    return torch.get_default_device()


def _written_by_schema(function: Any, args: tuple[Any, ...]) -> set[int]:
    """Identities of the arguments that an operator writes to: below autograd, versions do not move."""
    if function in _SILENT_WRITES:
        return {id(one) for place in _SILENT_WRITES[function] for one in tensors_in(args[place])}
    if not isinstance(function, torch._ops.OpOverload) or not function._schema.is_mutable:
        return set()
    pairs = zip(args, function._schema.arguments, strict=False)
    return {id(one) for arg, spec in pairs if spec.is_write for one in tensors_in(arg)}


def _depends_on_values(function: Any) -> NotImplementedError:
    return NotImplementedError(
        f"{shown_name(function)}: the shape of its result depends on the values, which differ between ranks, or it has "
        "no form without memory; call it in a function with remote(function, propagate=...), which states the shape"
    )
