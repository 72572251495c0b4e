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

from monarch_hpc.core.arguments import check_callable
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.capture.captured import capture
from monarch_hpc.tensor.opening import sharded_view_of, view_of
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
    "no_mesh",
    "process_group",
    "rank_tensor",
    "rank_tensors",
    "resumed",
    "sync",
]


class _Stack(threading.local):
    def __init__(self) -> None:
        self.views: list[View | None] = []


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
    """A block in which new tensors are on a mesh; at its end, all that it issued is done."""

    def __init__(self, view: View | None) -> None:
        self._view = view
        self._mode = _Mode(view)

    def __enter__(self) -> Self:
        _stack.views.append(self._view)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch's own
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]  # torch's own
        _stack.views.pop()
        if self._view is not None and error is None:
            self._view.engine.sync()


@contextmanager
def resumed(view: View | None) -> Iterator[None]:
    """Make new tensors where *view* was active, for code that belongs to an earlier block; waits for nothing."""
    _stack.views.append(view)
    try:
        with _Mode(view):
            yield
    finally:
        _stack.views.pop()


class _NoMesh:
    """``with no_mesh.activate()``: new tensors are the program's own, also in a block of a mesh."""

    def activate(self) -> _Activation:
        """The block."""
        return _Activation(None)


no_mesh = _NoMesh()


def activate(mesh: ProcMesh) -> _Activation:
    """See `ProcMesh.activate`."""
    return _Activation(view_of(mesh))


def active_view() -> View | None:
    """The view of the innermost block of this thread; None outside, and in a block of `no_mesh`."""
    return _stack.views[-1] if _stack.views else None


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


def capture_on(mesh: ProcMesh, function: Callable[..., Any] | None, verify: bool, is_sharded: bool = False) -> Any:
    """See `ProcMesh.capture` and `Mesh.capture`."""
    view = sharded_view_of(mesh) if is_sharded else view_of(mesh)
    return capture(view, function, verify, active_view)


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
    """Wait until the ranks of a mesh have done all that was issued.

    Raises:
        DeviceMeshError: a rank is gone.
        Exception: an operation failed whose result was never read.
    """
    view_of(mesh).engine.sync()
