"""Compiles templates to Python functions, so that a record is executed without looking at its structure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from monarch_hpc.tensor.ops.names import resolve
from monarch_hpc.tensor.stream.records import OpSpec, float_of
from monarch_hpc.wire.serializer import loads

__all__ = ["Template"]


class Template:
    """An operation that records name by its number.

    Attributes:
        run: takes the values, the integers of a frame, and the position of the record.
        function: what is called.
        grad: whether autograd records it.
        is_op: whether it is an operation of torch, not a function that the program has sent.
        size: number of integers of a record.
        refs: positions of values among them.
        mutated: positions of those values that are written to.
        num_outs: number of results, whose first number is the record's last integer.
    """

    __slots__ = ("function", "grad", "is_op", "mutated", "name", "num_outs", "refs", "run", "size")

    def __init__(self, spec: OpSpec) -> None:
        function = resolve(spec.name) if spec.name else _loaded(spec.function)
        self.name = spec.name or getattr(function, "__qualname__", repr(function))
        self.function = function
        self.grad = spec.grad
        self.is_op = bool(spec.name)
        self.refs = spec.refs
        self.mutated = spec.mutated
        self.num_outs = spec.num_outs
        self.size = 1 + spec.num_args + (1 if spec.num_outs else 0)
        self.run = _compile(spec, _with_autocast(function, spec.autocast) if spec.autocast else function)


def _loaded(packed: bytes) -> Any:
    found: Any = loads(packed)
    return found[0]


def _compile(spec: OpSpec, function: Callable[..., Any]) -> Callable[[Any, list[int], int], None]:
    call, out = f"F({spec.expression})", f"a[i+{spec.num_args + 1}]"
    if not spec.num_outs:
        body = call
    elif spec.is_tree:
        body = f"n={out}\n for k,v in enumerate(L({call})): E[n+k]=v"
    else:
        body = f"E[{out}]={call}"
    names = {"F": function, "K": spec.constants, "f": float_of, "L": _tensors}
    exec(f"def run(E,a,i):\n {body}", names)  # the source is built by `tensor.ops.encode` alone
    run: Callable[[Any, list[int], int], None] = names["run"]  # type: ignore[assignment]
    return run


def _tensors(result: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _with_autocast(function: Callable[..., Any], autocast: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for device, dtype in autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            return function(*args, **kwargs)

    return run
