"""Functions that run on the ranks of a mesh, with the ranks' own tensors as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from monarch_hpc.actor.future import Future
from monarch_hpc.core.arguments import check_callable
from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.tensor.active import active_view
from monarch_hpc.tensor.fetch import read_on_all
from monarch_hpc.tensor.opaque.ref import OpaqueRef, with_keys
from monarch_hpc.tensor.ops.infer import tensors_in
from monarch_hpc.tensor.ops.meta import GraphLeaf, Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.process_groups import RemoteProcessGroup, check_groups
from monarch_hpc.tensor.reading import answer_of, check_readable, retried, worker_at
from monarch_hpc.tensor.stream.copies import rebuild
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import CALL, CallRequest, Ref
from monarch_hpc.tensor.stream.sites import site_here
from monarch_hpc.tensor.streams.loans import check_use
from monarch_hpc.tensor.training.calls import held
from monarch_hpc.wire.frames import copy_of
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps

__all__ = ["Remote", "call_on_shard_and_fetch", "remote", "view_for"]

P = ParamSpec("P")
R = TypeVar("R")

_UNKNOWN = 1 << 16
"""Numbers set aside for the results of a call whose number of results is not known yet."""

_MAX_SHAPES = 4096
"""Number of cached results of a function; more have shapes that never return."""


class Remote(Generic[P, R]):
    """A function that runs on each rank; see `remote`."""

    def __init__(self, function: Callable[P, R] | str, propagate: Any) -> None:
        self._name = function if isinstance(function, str) else ""
        self._function = None if isinstance(function, str) else function
        self._propagate = propagate
        self._shapes: dict[Any, tuple[TreeSpec, list[Any]]] = {}
        self.__name__ = self._name or getattr(function, "__name__", repr(function))

    def __repr__(self) -> str:
        return f"<remote {self.__name__}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it on each rank; the tensors in its result are mesh tensors. Does not wait, if the shapes are known."""
        return self.rref(*args, **kwargs)

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it on each rank; see `__call__`."""
        return self.run_on(view_for(args, kwargs, self), args, kwargs)  # type: ignore[no-any-return]

    def run_on(self, view: View, args: Any, kwargs: Any) -> Any:
        """Run it on certain ranks, of which all mesh tensors among the arguments are."""
        described = _described(self._propagate, args, kwargs) if callable(self._propagate) else None
        args, kwargs = with_keys((args, kwargs))
        if described is not None:
            tree, leaves = described
        else:
            key = _shape_key(view, args, kwargs) if self._propagate != "inspect" else None
            found = self._shapes.get(key) if key is not None else None
            if found is None:
                return self._run_first(view, key, args, kwargs)
            tree, leaves = found
        num = sum(isinstance(leaf, (Meta, OpaqueRef)) for leaf in leaves)
        first = self._issue(view, args, kwargs, num, num)
        return _made(view, first, tree, leaves, args, kwargs)

    def _run_first(self, view: View, key: Any, args: Any, kwargs: Any) -> Any:
        """Run it, and take the shapes of its results from the first rank."""
        first = self._issue(view, args, kwargs, -1, _UNKNOWN)
        chosen, _ = worker_at(view, dict.fromkeys(view.region.extent, 0))

        def described() -> Any:
            return chosen.describe.fold(lambda replies: answer_of(view, replies[0]), first).get()

        leaves, tree = tree_flatten(retried(view, described, described, view.engine.epoch), is_leaf=_is_description)
        found = [_found(leaf) if _is_description(leaf) else leaf for leaf in leaves]
        if key is not None:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = tree, found
        return _made(view, first, tree, found, args, kwargs)

    def _issue(self, view: View, args: Any, kwargs: Any, num_outs: int, num_values: int) -> int:
        tensors = tensors_in((args, kwargs))
        for tensor in tensors:
            check_use(tensor)
        given = tree_map(lambda leaf: _sent(leaf, view, self), (args, kwargs))
        try:
            packed, buffers = dumps((self._name or self._function, *given))
        except Exception as error:  # pickling runs user code
            raise refusal({f"{self!r} or an argument": (self._function, given)}, error) from error
        kept = tuple(copy_of(buffer) for buffer in buffers)  # the program may change its arguments
        request = CallRequest(self.__name__, packed, kept, num_outs, torch.is_grad_enabled())
        numbers = [tensor._h.number for tensor in tensors]
        return view.engine.emit(view, [CALL, -2, -1, len(numbers), *numbers], num_values, request)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Run it on each rank; the future gives their results, tensors among them as the program's own."""
        args, kwargs = with_keys((args, kwargs))
        view = view_for(args, kwargs, self)
        return read_on_all(view, self._issue(view, args, kwargs, -2, 1))

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run it on the only rank of the mesh; the future gives its result.

        Raises:
            ValueError: the mesh has several ranks.
        """
        args, kwargs = with_keys((args, kwargs))
        view = view_for(args, kwargs, self)
        if len(view.ranks) != 1:
            raise ValueError(f"call_one needs a mesh of one rank, {view.name} has {len(view.ranks)}: slice it")
        return _on_one(view, self._issue(view, args, kwargs, -2, 1))


def _sent(leaf: Any, view: View, function: object) -> Any:
    if leaf.__class__ is MeshTensor:
        return Ref(leaf._h.number)
    return check_groups(leaf, view, function) if isinstance(leaf, RemoteProcessGroup) else leaf


def _on_one(view: View, number: int) -> Future[Any]:
    site = site_here(1)
    check_readable(view)
    view.engine.flush()
    future: Future[Any] = view.workers.read.fold(
        lambda replies: rebuild(answer_of(view, replies[0], site=site)[0]), (number,)
    )
    return future


@overload
def remote(function: Callable[P, R], *, propagate: Any = None) -> Remote[P, R]: ...
@overload
def remote(function: str, *, propagate: Any = None) -> Remote[..., Any]: ...
@overload
def remote(*, propagate: Any = None) -> Callable[[Callable[P, R]], Remote[P, R]]: ...
def remote(function: Any = None, *, propagate: Callable[..., Any] | Literal["cached", "inspect"] | None = None) -> Any:
    """Let *function* run on the ranks of a mesh; usable as a decorator.

    It gets the ranks' own tensors for mesh tensors among its arguments, and runs in its turn among the operations. Its
    result may hold tensors in lists, tuples and dicts. Autograd records what it does.

    Args:
        function: a function, or ``module.function`` as a string, which the ranks import.
        propagate: a function of the same arguments that returns tensors of the same shapes as the result: it runs in
            the program, on tensors without memory. ``cached`` or None: the first call with arguments of certain shapes
            waits for the result's shapes; what else the result holds is then taken to be the same at further calls.
            ``inspect``: each call waits for them.

    Raises:
        TypeError: *function* or *propagate* is something else.
    """
    if function is None:
        return lambda given: remote(given, propagate=propagate)
    if not isinstance(function, str):
        check_callable("function", function)
    elif "." not in function:
        raise TypeError(f"a function is named 'module.function', not {function!r}")
    if propagate not in (None, "cached", "inspect") and not callable(propagate):
        raise TypeError(f"propagate is {propagate!r}; it is a function, 'cached', 'inspect' or None")
    return Remote(function, propagate)


def call_on_shard_and_fetch(
    function: Remote[..., Any], *args: Any, shard: dict[str, int] | None = None, **kwargs: Any
) -> Future[Any]:
    """Run a remote function on one rank, at the coordinates *shard* (all 0 if None); the future gives its result."""
    args, kwargs = with_keys((args, kwargs))
    view = view_for(args, kwargs, function)
    place = {**dict.fromkeys(view.region.extent, 0), **(shard or {})}
    operations: Any = view.operations
    chosen = operations.view_at(view.region.slice(**place))
    return _on_one(chosen, function._issue(chosen, args, kwargs, -2, 1))


def view_for(args: Any, kwargs: Any, function: object) -> View:
    """The ranks of the mesh tensors among arguments, else those of the active mesh.

    Raises:
        ValueError: there are none, or the arguments are on different ones.
    """
    view: View | None = None
    for tensor in tensors_in(with_keys((args, kwargs))):
        if view is not None and tensor._h.view is not view:
            raise ValueError(f"the arguments of {function!r} are on different ranks: move them with to_mesh()")
        view = tensor._h.view
    view = view or active_view()
    if view is None:
        raise ValueError(f"{function!r} has no mesh tensor among its arguments: call it in 'with mesh.activate():'")
    return view


def _shape_key(view: View, args: Any, kwargs: Any) -> Any:
    leaves, tree = tree_flatten((args, kwargs))
    key = (
        view.engine.key,
        torch.is_grad_enabled(),
        tree,
        *(leaf._m if leaf.__class__ is MeshTensor else (leaf.__class__, leaf) for leaf in leaves),
    )
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _described(propagate: Callable[..., Any], args: Any, kwargs: Any) -> tuple[TreeSpec, list[Any]]:
    device = next((tensor.device for tensor in tensors_in((args, kwargs))), torch.device("cpu"))
    with torch._C.DisableTorchFunction():
        run = tree_map(lambda leaf: leaf._m.replica() if leaf.__class__ is MeshTensor else leaf, (args, kwargs))
        leaves, tree = tree_flatten(propagate(*run[0], **run[1]))
        return tree, [Meta.of(leaf, device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _is_description(leaf: Any) -> bool:
    return isinstance(leaf, tuple) and len(leaf) == 2 and leaf[0] in ("tensor", "object")


def _found(leaf: Any) -> Meta | OpaqueRef:
    if leaf[0] == "object":
        return OpaqueRef()
    shape, stride, dtype, device, grads, is_leaf = leaf[1]
    return Meta.make(tuple(shape), tuple(stride), dtype, torch.device(device), grads, is_leaf)


def _made(view: View, first: int, tree: TreeSpec, leaves: list[Any], args: Any, kwargs: Any) -> Any:
    """The result: mesh tensors and references for the descriptions among *leaves*."""
    nodes = tuple(tensor._n for tensor in tensors_in((args, kwargs)) if tensor._m.grads)
    made: list[Any] = []
    number = first
    for leaf in leaves:
        if isinstance(leaf, Meta):
            node: Any = GraphLeaf(number) if leaf.grads and leaf.leaf else nodes
            made.append(MeshTensor.make(number, view, leaf, node if leaf.grads else None))
            number += 1
        elif isinstance(leaf, OpaqueRef):
            view.engine.forfeit("an object lives on the ranks, which is on no other rank")
            made.append(OpaqueRef._of(held(number, view)))
            number += 1
        else:
            made.append(leaf)
    return tree_unflatten(made, tree)
