"""The functions that the program calls on the ranks, and their arguments, as a `CallRequest` has them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.utils._pytree import tree_leaves, tree_map

from monarch_hpc.tensor.stream.records import SHARDED_CALLS, TRAINING_CALLS, CallRequest, Ref
from monarch_hpc.tensor.worker.values import Values
from monarch_hpc.wire.serializer import loads

__all__ = ["LoadedCall", "Requests"]

_OWN_CALLS = SHARDED_CALLS, TRAINING_CALLS
_WRITING_CALLS = (f"{TRAINING_CALLS}checkpoints.load",)
"""Those that write to values; modules and optimizers that live here do, too, but are in no version."""
_SCALARS = frozenset({Ref, int, float, bool, str, type(None)})
_MAX_KEPT = 256
"""Number of requests that are kept as loaded: those of each step, whatever the number of modules and optimizers."""
_MAX_BYTES = 1024
"""Longest request that is kept."""


class LoadedCall(NamedTuple):
    """A function and its arguments.

    Attributes:
        function: the function.
        arguments: those by place, and those by name, with `Ref` for values.
        is_own: whether it is one of this package.
        may_write: whether nobody knows which of its arguments it writes to.
        is_plain: whether its arguments are values and scalars alone.
        is_flat: whether they are in no containers, and all by place.
    """

    function: Callable[..., Any]
    arguments: Any
    is_own: bool
    may_write: bool
    is_plain: bool
    is_flat: bool

    def with_values(self, values: Values, refs: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, in containers of their own.

        Args:
            values: those of this rank.
            refs: numbers of the values that negative numbers stand for.
        """

        if self.is_flat:
            return tuple([values[one.number] if one.__class__ is Ref else one for one in self.arguments[0]]), {}

        def value_of(leaf: Any) -> Any:
            if not isinstance(leaf, Ref):
                return leaf
            return values[leaf.number if leaf.number >= 0 else refs[-1 - leaf.number]]

        found: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(
            value_of, self.arguments, is_leaf=lambda x: isinstance(x, Ref)
        )
        return found


class Requests:
    """Loads requests; keeps what comes in each step, as the step of an optimizer does."""

    def __init__(self) -> None:
        self._kept: dict[bytes, LoadedCall] = {}

    def load(self, request: CallRequest) -> LoadedCall:
        """Load a request.

        Raises:
            Exception: what loading it raises.
        """
        found = self._kept.get(request.packed)
        if found is not None and not request.buffers:
            return found
        loaded: Any = loads(request.packed, request.buffers)
        name, arguments = loaded[0], loaded[1:]
        is_own = isinstance(name, str) and name.startswith(_OWN_CALLS)
        leaves = tree_leaves(arguments, is_leaf=lambda x: isinstance(x, Ref))
        is_plain = all(type(leaf) in _SCALARS for leaf in leaves)
        function = _imported(name) if isinstance(name, str) else name
        is_flat = is_plain and not arguments[1] and all(type(one) in _SCALARS for one in arguments[0])
        is_flat = is_flat and all(one.number >= 0 for one in arguments[0] if type(one) is Ref)
        found = LoadedCall(function, arguments, is_own, not is_own or name in _WRITING_CALLS, is_plain, is_flat)
        if is_own and is_plain and not request.buffers and len(request.packed) <= _MAX_BYTES:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[request.packed] = found
        return found


def _imported(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)
