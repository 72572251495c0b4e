"""Backward passes: on the ranks, and through the places where the graph goes on in the program, the last one first."""

from __future__ import annotations

from typing import Any

import torch

from monarch_hpc.tensor.ops.dispatch import dispatch
from monarch_hpc.tensor.ops.meta import GraphCall, GraphConversion, GraphLeaf, GraphResult, Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import BACKWARD, GET_GRAD, NO_GRAD
from monarch_hpc.tensor.streams.loans import check_use

__all__ = ["calls_behind", "issue_backward", "leaves_of", "taken_gradient"]


def issue_backward(loss: MeshTensor, gradient: MeshTensor | None, retain_graph: bool) -> None:
    """Issue a backward pass.

    Args:
        loss: where it begins.
        gradient: of *loss*; None for 1.
        retain_graph: whether the graph is kept for another one.
    """
    order = calls_behind(loss._n)
    num_roots: dict[View, int] = {}
    for call in order:
        for source in call.sources:
            num_roots[source._h.view] = num_roots.get(source._h.view, 0) + 1
    on_own = num_roots.get(loss._h.view, 0)
    given = _issue(loss, gradient, retain_graph or on_own > 0)
    for call in order:
        wanted = any(id(reference()) in given for reference, _, _ in call.results)
        gradients = call.backward([_gradient_of(*one, given) for one in call.results]) if wanted else ()
        for place, source in enumerate(call.sources):
            num_roots[source._h.view] -= 1
            if wanted and gradients[place] is not None:
                # Roots on the same ranks may share a part of the graph, which the last one frees.
                keeps = retain_graph or num_roots[source._h.view] > 0
                given |= _issue(source, gradients[place], keeps)


def leaves_of(node: Any) -> list[GraphLeaf]:
    """The leaves of autograd's graph that a place in it depends on, on its own ranks."""
    return _Reached(node).leaves


def calls_behind(node: Any) -> list[GraphCall]:
    """All calls that a place in the graph depends on, each after those whose gradients it gets."""
    order: list[GraphCall] = []
    seen: set[int] = set()

    def visit(node: Any) -> None:
        for result in _Reached(node).results:
            call = result.call
            if id(call) not in seen:
                seen.add(id(call))
                for source in call.sources:
                    visit(source._n)
                order.append(call)

    visit(node)
    return order[::-1]


def _issue(root: MeshTensor, gradient: MeshTensor | None, retain_graph: bool) -> dict[int, GraphResult]:
    """Issue the part of a pass on the ranks of *root*; return the results that it gives gradients, by identity."""
    reached = _Reached(root._n)
    view: View = root._h.view
    if view.engine.num_loans:
        check_use(root)
        check_use(gradient)
        for leaf in reached.leaves:
            check_use(leaf.grad, writes=True)
    on = reached.sharded or view  # sharded tensors need their rules
    leaves = reached.leaves
    head = [BACKWARD, root._h.number, gradient._h.number if gradient is not None else 0, int(retain_graph)]
    view.engine.emit(on, [*head, len(leaves), *(leaf.number for leaf in leaves)], depth=4)
    if view.engine.recovery is not None:
        view.engine.recovery.note_backward([leaf for leaf in leaves if leaf.__class__ is GraphLeaf])
    for leaf in leaves:
        if view.engine.recorder is not None:
            view.engine.recorder.note_leaf(leaf)
        if leaf.__class__ is GraphLeaf:
            leaf.has_grad, leaf.grad = True, None
    if not retain_graph and not isinstance(root._n, GraphLeaf):
        root._n = ()
    return {id(result): result for result in reached.results}


def _gradient_of(reference: Any, meta: Meta, view: View, given: dict[int, GraphResult]) -> MeshTensor:
    """The gradient that has arrived at a result of a call; zeros if nothing depends on it."""
    result = reference()
    if result is None or id(result) not in given:
        size = {"dtype": meta.dtype, "device": meta.device}
        made: MeshTensor = dispatch(torch.zeros, (tuple(meta.shape),), size, view)
        return made
    return taken_gradient(result.number, meta, view)


def taken_gradient(number: int, meta: Meta, view: View) -> MeshTensor:
    """The gradient of a leaf, which the next pass begins without."""
    taken = view.engine.emit(view, [GET_GRAD, number, -1], 1)
    view.engine.emit(view, [NO_GRAD, number])
    return MeshTensor.make(taken, view, meta)


class _Reached:
    """The part of the graph on the ranks of one stage.

    Attributes:
        leaves: its leaves.
        results: those of them that are results of calls.
        sharded: the view of its sharded tensors, if it has any beside others.
    """

    def __init__(self, node: Any) -> None:
        found: dict[int, GraphLeaf] = {}
        seen: set[int] = set()
        self.sharded: Any = None
        left = [node]
        while left:
            one = left.pop()
            if isinstance(one, GraphLeaf):
                found[id(one)] = one
            elif one and id(one) not in seen:
                seen.add(id(one))
                left.extend(one)
                if one.__class__ is GraphConversion:
                    self.sharded = one.sharded
        self.leaves = list(found.values())
        self.results = [leaf for leaf in self.leaves if isinstance(leaf, GraphResult)]
