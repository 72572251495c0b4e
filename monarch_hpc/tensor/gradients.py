"""Functions of the program with a backward of their own, and gradients that are handed out one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from monarch_hpc.core.arguments import check_callable
from monarch_hpc.tensor.active import active_view, get_active_mesh, resumed
from monarch_hpc.tensor.backward import calls_behind, leaves_of, taken_gradient
from monarch_hpc.tensor.ops.meta import GraphCall, GraphLeaf, Handle
from monarch_hpc.tensor.ops.proxy import MeshTensor, first_tensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import GET_GRAD, NO_GRAD, SET_GRAD

__all__ = ["grad_function", "grad_generator"]


def grad_function(function: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Let a function say itself how gradients go back through it; a decorator.

    It runs in the program, without autograd, and may do whatever operations on mesh tensors do: reduce them, copy them
    to other ranks, call functions there. Its backward runs in the program too, when `backward()` gets there.

    Args:
        function: takes its arguments one by one, and returns its result and a function: that takes a gradient for each
            tensor of the result (None for integers), and returns one for each argument, or None.

    Raises:
        TypeError: *function* is not one; in a call: a tensor of the program among mesh tensors requires a gradient.
    """
    check_callable("function", function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if first_tensor(args) is None:
            return _Local.apply(function, *args)  # type: ignore[no-untyped-call]  # torch's own
        sources = [(place, arg) for place, arg in enumerate(args) if _wants_gradient(arg)]
        for place, arg in sources:
            if arg.__class__ is not MeshTensor:
                raise TypeError(f"argument {place} is of the program and requires a gradient: put it on the mesh")
        with torch.no_grad():
            result, backward = function(*args)
        check_callable("the second result of a grad_function", backward)
        if not sources or not torch.is_grad_enabled():
            return result
        view, mesh, places = active_view(), get_active_mesh(), [place for place, _ in sources]
        leaves, tree = tree_flatten(result)
        has_gradient = [_has_gradient(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

        def run(gradients: list[Any]) -> Sequence[Any]:
            arrived = iter(gradients)
            with resumed(view, mesh), torch.no_grad():
                found = backward(*[next(arrived) if has else None for has in has_gradient])
            given = found if isinstance(found, (tuple, list)) else (found,)
            if len(given) < len(args):
                raise RuntimeError(
                    f"the backward of {function.__qualname__} returned {len(given)} gradients for {len(args)} "
                    "arguments: return one for each, None for those without"
                )
            return [given[place] for place in places]

        made = GraphCall([arg for _, arg in sources], run)
        return tree_unflatten([_result(made, leaf) if _has_gradient(leaf) else leaf for leaf in leaves], tree)

    return call


def _wants_gradient(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.requires_grad


def _has_gradient(leaf: Any) -> bool:
    return leaf.__class__ is MeshTensor and (leaf.is_floating_point() or leaf.is_complex())


def _result(call: GraphCall, leaf: Any) -> Any:
    with torch.no_grad():
        own: Any = leaf.detach()
    return call.lead_to(own)


class _Local(torch.autograd.Function):
    """The same for tensors of the program."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        result, ctx.backward_function = function(*args)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.backward_function(*gradients)
        return (None, *found) if isinstance(found, (tuple, list)) else (None, found)


def grad_generator(
    roots: Any, with_respect_to: Sequence[torch.Tensor], grad_roots: Sequence[torch.Tensor | None] = ()
) -> Iterator[Any]:
    """The gradients of tensors, one by one in the order of *with_respect_to*, without a change of `.grad`.

    The program can reduce each, or step with it, before it takes the next one. All are computed by one message, with
    the first; behind copies between ranks, or a `grad_function`, by a pass like `backward()`.

    Args:
        roots: one tensor, or several.
        with_respect_to: tensors that they depend on; leaves if the graph goes on in the program.
        grad_roots: gradients of the roots; of 1 if there is none.

    Raises:
        RuntimeError: a root does not require a gradient, or a tensor is not a leaf of a graph that goes on elsewhere.
    """
    given = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    starts = [*grad_roots, *[None] * (len(given) - len(grad_roots))]
    wanted = list(with_respect_to)
    return _generated(given, wanted, starts)


def _generated(roots: list[Any], wanted: list[Any], starts: list[Any]) -> Iterator[Any]:
    if not wanted:
        return
    if not any(root.__class__ is MeshTensor and calls_behind(root._n) for root in roots):
        given = None if all(one is None for one in starts) else starts
        yield from torch.autograd.grad(roots, wanted, given)
        return
    for tensor in wanted:
        if tensor.__class__ is not MeshTensor or not isinstance(tensor._n, GraphLeaf):
            raise RuntimeError(f"{tensor!r} is not a leaf, and the graph goes on in the program")
    saved = _SavedGradients(roots)
    try:
        for place, (root, start) in enumerate(zip(roots, starts, strict=True), 1):
            root.backward(start, retain_graph=place < len(roots))
        found = [_taken(tensor) for tensor in wanted]
    finally:
        saved.restore()
    yield from found


def _taken(tensor: MeshTensor) -> MeshTensor | None:
    leaf = tensor._n
    if not leaf.has_grad:
        return None
    leaf.has_grad, leaf.grad = False, None
    return taken_gradient(leaf.number, tensor._m.with_grads(False, leaf=True), tensor._h.view)


class _SavedGradients:
    """The gradients of all leaves that passes from some roots reach, which begin without."""

    def __init__(self, roots: list[Any]) -> None:
        sources = [*roots, *(source for root in roots for call in calls_behind(root._n) for source in call.sources)]
        self._leaves: list[tuple[GraphLeaf, View, Handle | None, Any]] = []
        seen: set[int] = set()
        for source in sources:
            view: View = source._h.view
            for leaf in leaves_of(source._n):
                if leaf.__class__ is GraphLeaf and id(leaf) not in seen:
                    seen.add(id(leaf))
                    self._leaves.append((leaf, view, self._set_aside(leaf, view), leaf.grad))
                    leaf.has_grad, leaf.grad = False, None

    def _set_aside(self, leaf: GraphLeaf, view: View) -> Handle | None:
        if not leaf.has_grad:
            return None
        kept = Handle(view.engine.emit(view, [GET_GRAD, leaf.number, -1], 1), view)
        view.engine.emit(view, [NO_GRAD, leaf.number])
        return kept

    def restore(self) -> None:
        """Give the leaves their gradients back."""
        for leaf, view, kept, grad in self._leaves:
            if kept is not None:
                view.engine.emit(view, [SET_GRAD, leaf.number, kept.number])
            elif leaf.has_grad:
                view.engine.emit(view, [NO_GRAD, leaf.number])
            leaf.has_grad, leaf.grad = kept is not None, grad
