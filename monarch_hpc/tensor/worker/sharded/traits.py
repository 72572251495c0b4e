"""Traits of operators, by their schemas: the arguments that they write to, views, random numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_iter

__all__ = ["OpTraits", "traits_of", "written_arguments", "written_by"]

_STATISTICS = "running_"
"""Arguments of such names are statistics that an operator updates; the schemas of most do not say so, such as those of
batch norms by cuDNN, which GPUs run in place of the CPU's, and of synchronized ones."""

_READS_STATISTICS = ("_backward", "_functional", "_no_training", "_no_update")
"""Operators whose names end in these only read them."""

_DROPOUTS = frozenset({"dropout", "dropout_p"})
"""Operators with an argument of such a name draw random numbers for that alone: none if it is 0."""

_HOST_KERNELS = (
    *("CPU", "CompositeImplicitAutograd"),
    *("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
)
"""Names under which torch's dispatcher has what runs on a CPU."""

_VALUE_FREE = frozenset(
    {"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"}
)
"""Random operators that overwrite their first argument; so do those called ``..._like``."""


class OpTraits:
    """What an operator does to its arguments.

    Attributes:
        name: the operator's.
        written: places and names of arguments that it may write to.
        resizes: whether it changes the shape of one.
        views: whether a result shares the memory of an argument.
        random: whether it may draw random numbers.
        has_host_kernel: whether it can run in host memory.
        value_free: whether it uses only the shape of its first argument.
    """

    __slots__ = ("_dropout", "has_host_kernel", "name", "random", "resizes", "value_free", "views", "written")

    def __init__(self, op: Any) -> None:
        arguments = op._schema.arguments
        name = op._schema.name.rpartition("::")[2]
        self.name = str(op)
        keeps = name.endswith(_READS_STATISTICS)
        places = [argument.name if argument.kwarg_only else place for place, argument in enumerate(arguments)]
        self.written: tuple[int | str, ...] = tuple(
            place
            for place, argument in zip(places, arguments, strict=True)
            if argument.is_write or (argument.name.startswith(_STATISTICS) and not keeps)
        )
        self._dropout = next((at for at, one in zip(places, arguments, strict=True) if one.name in _DROPOUTS), None)
        self.resizes = torch.Tag.inplace_view in op.tags
        self.views = not self.written and any(out.alias_info is not None for out in op._schema.returns)
        self.random = torch.Tag.nondeterministic_seeded in op.tags
        self.value_free = name in _VALUE_FREE or name.endswith("_like")
        dispatched = op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        self.has_host_kernel = any(has_kernel(dispatched, key) for key in _HOST_KERNELS)

    def draws(self, args: Any, kwargs: Any) -> bool:
        """Whether it draws random numbers, given its arguments."""
        return self.random and (self._dropout is None or _given(self._dropout, args, kwargs, 0) != 0)


traits_of = cache(OpTraits)


def written_arguments(traits: OpTraits, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator may write to; None for those that are left out."""
    return [_given(place, args, kwargs) for place in traits.written]


def written_by(traits: OpTraits, args: Any, kwargs: Any) -> list[Any]:
    """What is in the arguments that an operator may write to."""
    return list(tree_iter(written_arguments(traits, args, kwargs)))


def _given(place: int | str, args: Any, kwargs: Any, default: Any = None) -> Any:
    if isinstance(place, str):
        return kwargs.get(place, default)
    return args[place] if place < len(args) else default
