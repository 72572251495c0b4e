"""Modules that live on the ranks: to call one is one record, and what it does inside costs the program nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from monarch_hpc.core.shape import contiguous_strides
from monarch_hpc.tensor.ops.dispatch import dispatch, put
from monarch_hpc.tensor.ops.encode import foreign
from monarch_hpc.tensor.ops.infer import autocasts, tensors_in
from monarch_hpc.tensor.ops.meta import GraphLeaf, Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import ModulePlan, Ref
from monarch_hpc.tensor.training.calls import Issued, held

__all__ = ["RemoteModule", "remote_module"]

_MAX_SHAPES = 4096
"""Number of cached results of a module; one with more gets arguments of shapes that never return."""


class _Forward:
    """A call of a module: on the ranks that of the module there, in the program that of a copy without memory."""

    def __init__(self, shell: nn.Module) -> None:
        self._shell = shell
        self.__qualname__ = f"{type(shell).__qualname__}.forward"

    def __call__(self, _hosted: Any, _shapes: Any, *args: Any, **kwargs: Any) -> Any:
        shell, values = self._shell, {}
        if autocasts():  # which does not see tensors on device meta: then arguments are fake ones
            for name, tensor in [*shell.named_parameters(), *shell.named_buffers()]:
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                values[name] = fake.requires_grad_(tensor.requires_grad)
        result = torch.func.functional_call(shell, values, args, kwargs)
        # A module may return an argument; on the ranks it is another tensor.
        return tree_map(lambda leaf: leaf.view_as(leaf) if isinstance(leaf, torch.Tensor) else leaf, result)

    def __reduce__(self) -> Any:
        return _forward, ()


def _forward() -> Any:
    from monarch_hpc.tensor.worker.training.modules import forward

    return forward


class RemoteModule(nn.Module):
    """A module whose forward and backward run on the ranks; made by `module_to_mesh`, of a subclass of its class.

    Its parameters and buffers are sharded tensors, for optimizers, `state_dict` and `load_state_dict`. Gradients reach
    them through calls of this module only.
    """

    _remote: _Remote

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on the ranks; waits for nothing.

        Raises:
            ValueError: an argument is on another mesh.
            Exception: what the module raises about shapes and types of its arguments.
        """
        return self._remote.call(args, kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a module that lives on the ranks cannot be copied: make another with module_to_mesh")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a module that lives on the ranks cannot be pickled: pickle its values, t.full_tensor() of each"
        )


class _Remote:
    """What a `RemoteModule` keeps beside its parameters.

    Args:
        module: the module in the program.
        shell: a copy of the original without memory.
        view: the ranks.
        number: the module's, there.
    """

    def __init__(self, module: nn.Module, shell: nn.Module, view: View, number: int, *, is_local: bool) -> None:
        leaves = tuple(param._n for param in module.parameters() if param.requires_grad)  # type: ignore[attr-defined]
        self.view = view
        self.holder = held(number, view, leaves)
        self._parts = list(module.modules())
        self._shell = shell
        self._shell_parts = list(shell.modules())
        self._flags = tuple(part.training for part in self._parts)
        self._is_local = is_local
        self._forwards: dict[tuple[bool, ...], _Forward] = {}
        self._shapes: dict[Any, tuple[tuple[int, ...], ...]] = {}

    def call(self, args: Any, kwargs: Any) -> Any:
        """See `RemoteModule.forward`."""
        view = self.view
        for tensor in tensors_in((args, kwargs)):
            if tensor._h.view is not view:
                raise foreign(tensor, view)
        args, kwargs = tree_map(self._sent, (args, kwargs))
        self.send_changes()
        flags = self._flags
        forward = self._forwards.get(flags)
        if forward is None:
            forward = self._forwards[flags] = _Forward(self._shell)
        shapes = self._shapes_of(forward, args, kwargs) if self._is_local else ()
        return dispatch(forward, (self.holder, shapes, *args), kwargs)

    def send_changes(self) -> None:
        """Tell the ranks which parts are in training, if that has changed."""
        flags = tuple(part.training for part in self._parts)
        if flags != self._flags:
            number = self.holder._h.number
            Issued("modules.set_training", [Ref(number), flags], [number], 0).issue(self.view)
            self._flags = flags
            for part, flag in zip(self._shell_parts, flags, strict=True):
                part.training = flag

    def _sent(self, leaf: Any) -> Any:
        local = isinstance(leaf, torch.Tensor) and leaf.__class__ is not MeshTensor
        return put(leaf, self.view) if local else leaf

    def _shapes_of(self, forward: _Forward, args: Any, kwargs: Any) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors in the result."""
        leaves, tree = tree_flatten((args, kwargs))
        given = [leaf._m if leaf.__class__ is MeshTensor else (leaf.__class__, leaf) for leaf in leaves]
        key = (forward, tree, autocasts(), *given)
        found = self._shapes.get(key)
        if found is None:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            place, faking = ("cpu", FakeTensorMode()) if autocasts() else ("meta", nullcontext())
            with torch._C.DisableTorchFunction(), torch.no_grad(), faking:
                run = [leaf._m.replica(place) if leaf.__class__ is MeshTensor else leaf for leaf in leaves]
                run_args, run_kwargs = tree_unflatten(run, tree)
                result = forward(None, None, *run_args, **run_kwargs)
            results = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
            found = self._shapes[key] = tuple(tuple(one.shape) for one in results)
        return found


def remote_module(
    module: nn.Module,
    view: View,
    shard_dims: Mapping[str, tuple[int, ...]],
    out_dims: tuple[int, ...] | None,
    parallelize: Callable[..., Any] | None,
    compile_with: str,
) -> nn.Module:
    """A module on the ranks; see `module_to_mesh`.

    Args:
        module: the module.
        view: the ranks.
        shard_dims: see `ModulePlan`.
        out_dims: likewise.
        parallelize: likewise.
        compile_with: likewise.
    """
    plan = ModulePlan(parallelize, compile_with, out_dims, dict(shard_dims))
    with torch._C.DisableTorchFunction():
        shell = copy.deepcopy(module).to("meta")
        built = Issued("modules.build", [module, plan], [], -2)
    number = built.issue(view)
    view.engine.forfeit("a module lives on its ranks, whose state is on no other rank")
    named: dict[str, torch.Tensor] = dict(module.named_parameters())
    named_buffers = dict(module.named_buffers())
    num = len(named) + len(named_buffers)
    first = Issued("modules.tensors", [Ref(number)], [number], num).issue(view) if num else 0
    copies: dict[int, Any] = {}
    for place, tensor in enumerate([*named.values(), *named_buffers.values()], first):
        shape, grads = tuple(tensor.shape), tensor.requires_grad
        meta = Meta.make(shape, contiguous_strides(shape), tensor.dtype, tensor.device, grads, True)
        placed: Any = MeshTensor.make(place, view, meta, GraphLeaf(place) if grads else None)
        if isinstance(tensor, nn.Parameter):
            placed._is_param = True  # what makes it an instance of Parameter
        copies[id(tensor)] = placed
    made = copy.deepcopy(module, copies)
    made.__class__ = type(f"Remote{type(module).__name__}", (RemoteModule, type(module)), {"__module__": __name__})
    made._remote = _Remote(made, shell, view, number, is_local=out_dims is not None)  # type: ignore[assignment]
    return made
