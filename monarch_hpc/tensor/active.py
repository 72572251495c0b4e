"""``with mesh.activate()``: torch's functions that make tensors make them on the ranks of the mesh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch.overrides import TorchFunctionMode

from monarch_hpc.core.arguments import check_callable, check_instance
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.capture.captured import capture
from monarch_hpc.tensor.opening import engines_of, entered_stream, sharded_view_of, view_of
from monarch_hpc.tensor.operations import coordinate
from monarch_hpc.tensor.ops.dispatch import dispatch
from monarch_hpc.tensor.ops.proxy import MeshTensor, first_tensor
from monarch_hpc.tensor.process_groups import RemoteProcessGroup
from monarch_hpc.tensor.stream.engine import View

__all__ = [
    "activate",
    "active_view",
    "capture_on",
    "compile",
    "get_active_mesh",
    "no_mesh",
    "on_stream",
    "process_group",
    "rank_tensor",
    "rank_tensors",
    "resumed",
    "sync",
]


class _Stack(threading.local):
    def __init__(self) -> None:
        self.views: list[View | None] = []
        self.meshes: list[ProcMesh | None] = []


_stack = _Stack()


class _Mode(TorchFunctionMode):
    def __init__(self, view: View | None) -> None:
        super().__init__()
        self._view = view

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._view is not None:
            return dispatch(function, args, kwargs or {}, self._view)
        if first_tensor((args, kwargs)) is not None:
            return dispatch(function, args, kwargs or {})
        with torch._C.DisableTorchFunction():
            return function(*args, **(kwargs or {}))


class _Activation:
    """A block in which new tensors are on a mesh; at its end, all that was issued there is done."""

    def __init__(self, mesh: ProcMesh | None) -> None:
        self._mesh = mesh
        self._view = None if mesh is None else view_of(mesh)
        self._mode = _Mode(self._view)

    def __enter__(self) -> Self:
        _push(self._mesh, self._view)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch's own
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]  # torch's own
        _pop()
        if self._mesh is not None and error is None:
            sync(self._mesh)


def _push(mesh: ProcMesh | None, view: View | None) -> None:
    _stack.meshes.append(mesh)
    _stack.views.append(view)


def _pop() -> None:
    _stack.meshes.pop()
    _stack.views.pop()


@contextmanager
def resumed(view: View | None, mesh: ProcMesh | None) -> Iterator[None]:
    """Make new tensors where *view*, of *mesh*, was active, for code of an earlier block; waits for nothing."""
    _push(mesh, view)
    try:
        with _Mode(view):
            yield
    finally:
        _pop()


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Make new tensors in a stream; waits for nothing."""
    mesh = get_active_mesh()
    with entered_stream(stream):
        if mesh is None:
            yield
        else:
            with resumed(view_of(mesh), mesh):
                yield


class _NoMesh:
    """``with no_mesh.activate()``: new tensors are the program's own, also in a block of a mesh."""

    def activate(self) -> _Activation:
        """The block."""
        return _Activation(None)


no_mesh = _NoMesh()


def activate(mesh: ProcMesh) -> _Activation:
    """See `ProcMesh.activate`."""
    check_instance("mesh", mesh, ProcMesh, "a mesh of procs, as spawn_procs returns it")
    return _Activation(mesh)


def active_view() -> View | None:
    """The view of the innermost block of this thread; None outside, and in a block of `no_mesh`."""
    return _stack.views[-1] if _stack.views else None


def get_active_mesh() -> ProcMesh | None:
    """The mesh of the innermost block of this thread; None outside, and in a block of `no_mesh`."""
    return _stack.meshes[-1] if _stack.meshes else None


def rank_tensor(mesh: ProcMesh, dim: str) -> MeshTensor:
    """See `ProcMesh.rank_tensor`."""
    return coordinate(view_of(mesh), dim)


def rank_tensors(mesh: ProcMesh) -> dict[str, MeshTensor]:
    """See `ProcMesh.rank_tensors`."""
    view = view_of(mesh)
    return {name: coordinate(view, name) for name in mesh.extent}


def process_group(mesh: ProcMesh, dims: str | tuple[str, ...]) -> RemoteProcessGroup:
    """See `ProcMesh.process_group`."""
    return RemoteProcessGroup(dims, mesh)


def capture_on(mesh: ProcMesh, function: Callable[..., Any] | None, verify: bool) -> Any:
    """See `ProcMesh.capture`."""
    return capture(view_of(mesh), function, verify, active_view)


def capture_sharded(
    mesh: ProcMesh, function: Callable[..., Any] | None, verify: bool, lower: bool, graphs: bool
) -> Any:
    """See `Mesh.capture`."""
    return capture(sharded_view_of(mesh), function, verify, active_view, lower, graphs)


class _Compiled:
    """A function that is captured on the mesh that is active at a call; see `compile`."""

    def __init__(self, function: Callable[..., Any], verify: bool) -> None:
        self._function = function
        self._verify = verify
        self._captured: WeakKeyDictionary[View, Any] = WeakKeyDictionary()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        view = active_view()
        if view is None:
            tensor = first_tensor((args, kwargs))
            if tensor is None:
                raise ValueError(f"{self._function!r} has no mesh tensor among its arguments, and no mesh is active")
            view = tensor._h.view
        found = self._captured.get(view)
        if found is None:
            found = self._captured[view] = capture(view, self._function, self._verify, active_view)
        return found(*args, **kwargs)


def compile(function: Callable[..., Any] | None = None, *, verify: bool = False) -> Any:
    """Capture a function on the mesh that is active when it is called, else on that of its arguments; a decorator.

    Args:
        function: see `ProcMesh.capture`.
        verify: likewise.
    """
    if function is None:
        return lambda given: compile(given, verify=verify)
    check_callable("function", function)
    return _Compiled(function, verify)


def sync(mesh: ProcMesh) -> None:
    """Wait until the ranks of a mesh have done all that was issued, in all streams.

    Raises:
        DeviceMeshError: a rank is gone.
        Exception: an operation failed whose result was never read.
    """
    view_of(mesh)
    engines = engines_of(mesh)
    for engine in engines:
        engine.flush()
    for engine in engines:
        engine.sync()
