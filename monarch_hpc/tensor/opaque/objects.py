"""Objects on the ranks whose methods the program calls."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.tensor.opaque.ref import OpaqueRef
from monarch_hpc.tensor.remote_functions import call_on_shard_and_fetch, remote

__all__ = ["OpaqueObject", "opaque_method"]


def _constructed(constructor: Any, *args: Any, **kwargs: Any) -> OpaqueRef:
    if isinstance(constructor, str):
        module, _, name = constructor.rpartition(".")
        constructor = getattr(importlib.import_module(module), name)
    return OpaqueRef(constructor(*args, **kwargs))


def _called(ref: OpaqueRef, method: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(ref.value, method)(*args, **kwargs)


_construct = remote(_constructed, propagate=lambda *_args, **_kwargs: OpaqueRef())
_call: Any = remote(_called)


class OpaqueObject(OpaqueRef):
    """An object on each rank of the active mesh, or of the mesh tensors among the arguments.

    Subclasses declare methods with `opaque_method`.

    Args:
        constructor: makes it: a class or function, or ``module.name`` as a string, which the ranks import; or an
            `OpaqueRef` to take.
        *args: arguments of the constructor.
        **kwargs: likewise.
    """

    def __init__(self, constructor: Callable[..., Any] | str | OpaqueRef, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        made = constructor if isinstance(constructor, OpaqueRef) else _construct(constructor, *args, **kwargs)
        self._key = made._key

    def call_method(self, method: str, propagate: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
        """Call a method on each rank, in turn with operations.

        Args:
            method: its name.
            propagate: takes this object and the arguments, and returns tensors of the same shapes as the result; None
                to ask the ranks, see `remote`.
            *args: arguments of the method.
            **kwargs: likewise.
        """
        if propagate is None:
            return _call(self, method, *args, **kwargs)

        def described(_self: Any, _method: str, *args: Any, **kwargs: Any) -> Any:
            return propagate(self, *args, **kwargs)

        return remote(_called, propagate=described)(self, method, *args, **kwargs)

    def call_method_on_shard_and_fetch(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a method on one rank, see `call_on_shard_and_fetch`; the future gives its result."""
        return call_on_shard_and_fetch(_call, self, method, *args, **kwargs)


def opaque_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a method of an `OpaqueObject` by a function that returns tensors of the result's shapes; a decorator."""

    @functools.wraps(method)
    def call(self: OpaqueObject, *args: Any, **kwargs: Any) -> Any:
        return self.call_method(method.__name__, method, *args, **kwargs)

    return call
