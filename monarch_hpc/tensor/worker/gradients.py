"""Executes the records about gradients, and about tensors that get them.

Args of all functions here:
    sharding: how operators run on the tensors of the frame's mesh; None if each rank has values of its own.
    journal: keeps what undoes the effects of a version.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward

from monarch_hpc.tensor.worker.healing.journal import Journal
from monarch_hpc.tensor.worker.values import Dependent, Failure, Values

__all__ = ["backward", "get_grad", "require_grad", "run_backward", "set_data", "set_grad"]


def backward(
    values: Values,
    sharding: Any,
    journal: Journal,
    loss: int,
    gradient: int,
    retain: bool,
    leaves: list[int],
    seq: int,
) -> None:
    """Call ``backward`` of a value; if it fails, the gradients of *leaves* fail with it."""
    journal.effects += 1
    try:
        values.check((loss, gradient))
        torch._C._set_grad_enabled(True)
        root, given = values[loss], values[gradient]
        first = None if given is not None or sharding is None else sharding.first_gradient(root)
        if first is None:
            root.backward(given, retain_graph=retain)
        else:
            run_backward((root,), (first,), retain=retain)
        if sharding is not None:
            sharding.note_backward(leaves)
    except BaseException as error:
        failure = Failure(error.root if isinstance(error, Dependent) else seq)
        values.grads.update((leaf, failure) for leaf in leaves if leaf in values)
        raise


def get_grad(values: Values, sharding: Any, leaf: int, out: int) -> None:
    """Make the gradient of a value a value of its own."""
    values.check((leaf,))
    failure = values.grads.get(leaf)
    if failure is not None:
        raise Dependent(failure.root)
    grad = sharding.grad_of(leaf, values) if sharding is not None else values[leaf].grad
    if grad is None:
        raise RuntimeError("this tensor has no gradient on this rank: backward() did not reach it")
    values[out] = grad


def set_grad(values: Values, sharding: Any, leaf: int, value: int) -> None:
    """Set the gradient of a value, to none if *value* is 0."""
    values.grads.pop(leaf, None)
    if value and type(failed := values.found(value)) is Failure:
        values.grads[leaf] = failed
    elif type(target := values.found(leaf)) is not Failure:
        if sharding is not None:
            sharding.set_grad(target, values[value])
        else:
            target.grad = values[value]


def require_grad(values: Values, sharding: Any, journal: Journal, leaf: int, flag: bool) -> None:
    """Set whether a value requires a gradient."""
    values.check((leaf,))
    value = values[leaf]
    change = value.requires_grad_ if sharding is None else partial(sharding.require_grad, value)
    if leaf < journal.mark and value.requires_grad is not flag:
        journal.on_undo(partial(change, not flag))
    change(flag)


def set_data(values: Values, target: int, value: int, kind: int) -> None:
    """Give a value the elements of another one, also one that has failed, or is lost: nothing of it is needed.

    Args:
        kind: 0 if it requires no gradient; 1 if it does, and is a leaf; 2 if it has a history, which nothing restores.
    """
    values.check((value,))
    if type(failed := values.found(target)) is not Failure:
        failed.data = values[value]
    elif kind == 2:
        raise Dependent(failed.root)
    else:
        values.replace(target, values[value].detach().requires_grad_(bool(kind)))


def run_backward(roots: tuple[Any, ...], firsts: tuple[Any, ...], *, retain: bool) -> None:
    """Run a backward pass without torch's comparison of shapes, which takes longer than an operator.

    Args:
        roots: where it begins.
        firsts: their gradients, of the same shapes.
        retain: whether autograd's graph is kept.
    """
    _engine_run_backward(roots, firsts, retain, False, (), allow_unreachable=True, accumulate_grad=True)
