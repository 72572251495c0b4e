"""Modules that each rank has of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from monarch_hpc.tensor.opaque.objects import OpaqueObject
from monarch_hpc.tensor.opaque.ref import OpaqueRef
from monarch_hpc.tensor.remote_functions import remote

__all__ = ["OpaqueModule"]


def _parameters_of(module: OpaqueRef) -> list[torch.Tensor]:
    return list(module.value.parameters())


def _forward(module: OpaqueRef, _parameters: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
    return module.value(*args, **kwargs)


_parameters: Any = remote(_parameters_of, propagate="inspect")
_forward_cached: Any = remote(_forward)


class OpaqueModule:
    """A module on each rank, with values of its own there; the program has its parameters as mesh tensors.

    A call is one message, and gradients flow back through it: to its arguments, and to its parameters. To train one
    module on parts of a batch, reduce the gradients; or use `module_to_mesh(module, mesh, remote=True)`, which does.

    Args:
        constructor: see `OpaqueObject`.
        *args: likewise.
        **kwargs: likewise.
    """

    def __init__(self, constructor: Callable[..., Any] | str | OpaqueRef, *args: Any, **kwargs: Any) -> None:
        self._object = OpaqueObject(constructor, *args, **kwargs)
        self._found: list[Any] | None = None

    def parameters(self) -> list[Any]:
        """Its parameters, the same tensors at each call; the first one asks the ranks for their shapes."""
        if self._found is None:
            self._found = _parameters(self._object)
        return self._found

    def call_method(self, method: str, propagate: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
        """See `OpaqueObject.call_method`; no gradients reach the parameters."""
        return self._object.call_method(method, propagate, *args, **kwargs)

    def __call__(self, *args: Any, propagator: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        """Call it on each rank.

        Args:
            *args: its arguments.
            propagator: takes this object and the arguments, and returns tensors of the same shapes as the result; None
                to ask the ranks at the first call with arguments of certain shapes.
            **kwargs: its arguments.
        """
        if propagator is None:
            return _forward_cached(self._object, self.parameters(), args, kwargs)

        def described(_self: Any, parameters: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
            found = propagator(self._object, *args, **kwargs)
            grads = torch.is_grad_enabled() and any(one.requires_grad for one in parameters)
            return _inside(found) if grads else found

        return remote(_forward, propagate=described)(self._object, self.parameters(), args, kwargs)


def _inside(found: Any) -> Any:
    """The same shapes, inside of autograd's graph: parameters are part of it, of which a propagator knows nothing."""
    one = torch.ones((), device="meta", requires_grad=True)
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf * one if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, found
    )
