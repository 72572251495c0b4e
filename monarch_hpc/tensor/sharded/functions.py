"""Functions that run on all ranks of a mesh, with sharded tensors among their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_map

from monarch_hpc.tensor.ops.dispatch import put
from monarch_hpc.tensor.ops.encode import foreign
from monarch_hpc.tensor.ops.infer import tensors_in
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.remote_functions import Remote
from monarch_hpc.tensor.stream.engine import View

__all__ = ["execute"]


def execute(
    view: View,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    propagate: Callable[..., Any] | None,
) -> Any:
    """See `Mesh.execute`."""

    def sent(leaf: Any) -> Any:
        return put(leaf, view) if isinstance(leaf, torch.Tensor) and leaf.__class__ is not MeshTensor else leaf

    for tensor in tensors_in((args, kwargs)):
        if tensor._h.view is not view:
            raise foreign(tensor, view)
    recovery = view.engine.recovery
    if recovery is not None and any(t._h.number < recovery.last_mark for t in tensors_in((args, kwargs))):
        recovery.note_change()  # it may write to them
    args, kwargs = tree_map(sent, (args, kwargs))
    return _remote_of(function, propagate).run_on(view, args, kwargs)


_remotes: WeakKeyDictionary[Callable[..., Any], dict[Any, Remote[..., Any]]] = WeakKeyDictionary()


def _remote_of(function: Callable[..., Any], propagate: Callable[..., Any] | None) -> Remote[..., Any]:
    """The remote form of a function, which remembers the shapes of its results."""
    try:
        known = _remotes.setdefault(function, {})
    except TypeError:  # no weak references to it
        return Remote(function, propagate)
    found = known.get(propagate)
    if found is None:
        found = known[propagate] = Remote(function, propagate)
    return found
