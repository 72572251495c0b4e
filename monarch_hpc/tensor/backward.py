"""Backward passes, also through copies between ranks: on the ranks of each stage in turn, last stage first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_hpc.tensor.ops.meta import GraphConversion, GraphLeaf, GraphTransfer
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import BACKWARD, GET_GRAD, NO_GRAD

__all__ = ["issue_backward", "leaves_of"]


def issue_backward(
    loss: MeshTensor, gradient: MeshTensor | None, retain_graph: bool, send: Callable[[MeshTensor, View], MeshTensor]
) -> None:
    """Issue a backward pass.

    Args:
        loss: where it begins.
        gradient: of *loss*; None for 1.
        retain_graph: whether the graph is kept for another one.
        send: copies a tensor to the ranks of a view.
    """
    reached = _Reached(loss._n)
    num_roots: dict[View, int] = {}
    order = reached.in_order()
    for transfer in order:
        view = transfer.source._h.view
        num_roots[view] = num_roots.get(view, 0) + 1
    on_own = num_roots.get(loss._h.view, 0)
    _issue(loss, gradient, retain_graph or on_own > 0, reached)
    for transfer in order:
        source = transfer.source
        gradient = _taken(transfer, transfer.received.view)
        num_roots[source._h.view] -= 1
        # Roots on the same ranks may share a part of the graph, which the last one frees.
        keeps = retain_graph or num_roots[source._h.view] > 0
        _issue(source, send(gradient, source._h.view), keeps, _Reached(source._n))


def leaves_of(node: Any) -> list[GraphLeaf]:
    """The leaves of autograd's graph that a place in it depends on, on its own ranks."""
    return _Reached(node).leaves


def _issue(root: MeshTensor, gradient: MeshTensor | None, retain_graph: bool, reached: _Reached) -> None:
    """Issue the part of a pass on the ranks of *root*."""
    view: View = root._h.view
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


def _taken(transfer: GraphTransfer, view: View) -> MeshTensor:
    """The gradient that has arrived at a copy, which the next pass begins without."""
    meta = transfer.source._m.with_grads(False, leaf=True)
    number = view.engine.emit(view, [GET_GRAD, transfer.number, -1], 1)
    view.engine.emit(view, [NO_GRAD, transfer.number])
    return MeshTensor.make(number, view, meta)


class _Reached:
    """The part of the graph on the ranks of one stage.

    Attributes:
        leaves: its leaves.
        transfers: those of them that are copies from other ranks.
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
        self.transfers = [leaf for leaf in self.leaves if isinstance(leaf, GraphTransfer)]

    def in_order(self) -> list[GraphTransfer]:
        """All copies behind this part, each after those whose gradients it gets."""
        order: list[GraphTransfer] = []
        seen: set[int] = set()

        def visit(reached: _Reached) -> None:
            for transfer in reached.transfers:
                if id(transfer) not in seen:
                    seen.add(id(transfer))
                    visit(_Reached(transfer.source._n))
                    order.append(transfer)

        visit(self)
        return order[::-1]
