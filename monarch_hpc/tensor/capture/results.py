"""The result of a captured step, made anew for each replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from monarch_hpc.tensor.backward import leaves_of
from monarch_hpc.tensor.capture.recorder import StepRecording
from monarch_hpc.tensor.capture.recording import CannotCapture
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View

__all__ = ["Results"]


class Results:
    """How the result of a call is made of the numbers of a replay.

    Args:
        result: the result of a recorded call.
        recording: what it has issued.
        given: the mesh tensors among its arguments.
        view: the ranks.

    Raises:
        CannotCapture: it cannot be made anew.
    """

    def __init__(self, result: Any, recording: StepRecording, given: Sequence[MeshTensor], view: View) -> None:
        leaves, self._tree = tree_flatten(result)
        self._leaves = [_made_of(leaf, recording, given, view) for leaf in leaves]

    def made(self, first: int, view: View, given: Sequence[MeshTensor]) -> Any:
        """The result of the replay whose first value has the number *first*."""
        found: list[Any] = []
        for kind, value, meta, nodes in self._leaves:
            if kind == "own":
                node = tuple(given[one]._n if one.__class__ is int else one for one in nodes) if nodes else ()
                found.append(MeshTensor.make(first + value, view, meta, node if meta.grads else None))
            else:
                found.append(given[value] if kind == "given" else value)
        return tree_unflatten(found, self._tree)

    def check_alike(self, other: Results) -> None:
        """Check that two calls have returned the same, but for the values of mesh tensors.

        Raises:
            CannotCapture: they have not.
        """
        same = self._tree == other._tree and len(self._leaves) == len(other._leaves)
        if not same or any(
            one[:3] != two[:3] if one[0] != "kept" else one[1] is not two[1]
            for one, two in zip(self._leaves, other._leaves, strict=True)
        ):
            raise CannotCapture("two calls return different things beside mesh tensors", is_final=False)


def _made_of(leaf: Any, recording: StepRecording, given: Sequence[MeshTensor], view: View) -> tuple[str, Any, Any, Any]:
    if leaf.__class__ is not MeshTensor:
        if isinstance(leaf, torch.Tensor) or not (leaf is None or type(leaf) in (bool, int, float, str, bytes)):
            raise CannotCapture(f"it returns a value of type {type(leaf).__name__}: return tensors, numbers or strings")
        return "value", leaf, None, None
    for place, tensor in enumerate(given):
        if tensor is leaf:
            return "given", place, None, None
    number = leaf._h.number
    if leaf._h.view is not view:
        raise CannotCapture("it returns a tensor of other ranks")
    if number not in recording.own:
        if number not in recording.externals:
            raise CannotCapture("it returns a mesh tensor that it has not used", is_final=False)
        return "kept", leaf, None, None
    nodes: list[Any] = []
    if leaf._m.grads:
        arguments = {id(tensor._n): place for place, tensor in enumerate(given)}
        if leaf._m.leaf:
            raise CannotCapture("it returns a new leaf that requires a gradient")
        known = {id(one): one for one, _ in recording.leaves.values()}
        for node in leaves_of(leaf._n):
            if id(node) in arguments:
                nodes.append(arguments[id(node)])
            elif node.number in recording.externals or id(node) in known:
                nodes.append(node)
            else:
                raise CannotCapture("it returns a tensor of a graph with a leaf that the step has made")
        if any(tensor._m.grads and not tensor._m.leaf for tensor in given):
            raise CannotCapture("an argument belongs to autograd's graph already: detach() it")
    return "own", recording.own[number], leaf._m, tuple(nodes)
