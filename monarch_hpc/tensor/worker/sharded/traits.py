"""Traits of operators: the arguments that they write to, views, random numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_iter

__all__ = ["OpTraits", "traits_of", "written_by"]

_HIDDEN_WRITES: dict[str, tuple[int | str, ...]] = {"aten.native_batch_norm.default": (3, 4)}
"""Places of arguments that an operator writes to, and does not say so: the running mean and variance."""
_VALUE_FREE = frozenset(
    {"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"}
)
"""Random operators that overwrite their first argument; so do those called ``..._like``."""


class OpTraits:
    """What an operator does to its arguments.

    Attributes:
        name: the operator's.
        written: places and names of arguments that it writes to.
        resizes: whether it changes the shape of one.
        views: whether a result shares the memory of an argument.
        random: whether it draws random numbers.
        value_free: whether it uses only the shape of its first argument.
    """

    __slots__ = ("name", "random", "resizes", "value_free", "views", "written")

    def __init__(self, op: Any) -> None:
        arguments = op._schema.arguments
        self.name = str(op)
        self.written = tuple(
            argument.name if argument.kwarg_only else place
            for place, argument in enumerate(arguments)
            if argument.is_write
        ) + _HIDDEN_WRITES.get(self.name, ())
        self.resizes = torch.Tag.inplace_view in op.tags
        self.views = not self.written and any(out.alias_info is not None for out in op._schema.returns)
        self.random = torch.Tag.nondeterministic_seeded in op.tags
        name = op._schema.name.rpartition("::")[2]
        self.value_free = name in _VALUE_FREE or name.endswith("_like")


traits_of = cache(OpTraits)


def written_by(traits: OpTraits, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes to."""
    given = [
        kwargs.get(place) if isinstance(place, str) else args[place] if place < len(args) else None
        for place in traits.written
    ]
    return list(tree_iter(given))
