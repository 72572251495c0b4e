"""Opens the tensors of a mesh of procs: spawns a worker and a control actor in each, once for each mesh."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch

from monarch_hpc.config.load import load
from monarch_hpc.config.sections.tensor import TensorConfig
from monarch_hpc.core.arguments import check_instance
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import ActorDied, MonarchError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.custom_functions import carry_custom_functions
from monarch_hpc.tensor.healing.ranks import Ranks
from monarch_hpc.tensor.healing.recovery import Recovery
from monarch_hpc.tensor.healing.rejoin import Rejoin
from monarch_hpc.tensor.local.mesh import LocalMesh
from monarch_hpc.tensor.operations import MeshOperations
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.sharded.operations import ShardedOperations
from monarch_hpc.tensor.stream.engine import TensorEngine, View
from monarch_hpc.tensor.stream.frames import is_reached
from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.actor import TensorWorker, WorkerSettings
from monarch_hpc.tensor.worker.control import TensorControl
from monarch_hpc.transport.address import parse_address
from monarch_hpc.wire.serializer import reduce_in_messages

__all__ = [
    "current_stream",
    "engines_of",
    "entered_stream",
    "is_whole",
    "rank_view_of",
    "recovery_of",
    "sharded_view_of",
    "view_of",
]


class _Opened:
    """The tensors of a mesh of procs, in one stream.

    Args:
        root: the procs.
        stream: the stream; None for that of programs without any.
    """

    def __init__(self, root: ProcMesh, stream: Any) -> None:
        config = load().config.tensor
        key, shown = new_incarnation(), "" if stream is None else f", stream {stream.name}"
        self._mesh = 0
        self._places = partial(_view_in, stream), self.view_at, self.sharded_at, partial(_on_stream, root)
        if isinstance(root, LocalMesh):
            self._workers: Any = root.open_workers(key, config, is_stream=bool(shown))
            # Frames leave when they are full or a value is read: the timer's thread must not wait for ranks.
            self.engine = TensorEngine(
                key, f"{root!r}{shown}", replace(config, flush_s=_NEVER_S), lambda _cause, _epoch: None
            )
            self.engine.forfeit("its ranks are threads of the program, of which none can be lost")
            stopped = ActorDied(f"the workers of {root!r}", Death(DeathKind.STOPPED, "it was stopped"))
            root.when_stopped(key, partial(self.engine.lose, -1, stopped))
        else:
            self._open_procs(root, key, config, shown)
        self.engine.num_ranks = len(root.region)
        self._operations = MeshOperations(*self._places, self._mesh)
        self._sharded = ShardedOperations(*self._places, self._mesh)

    def _open_procs(self, root: ProcMesh, key: int, config: TensorConfig, shown: str) -> None:
        procs = root.procs
        ranks = tuple(root.region.base_ranks())
        addresses = {rank: parse_address(proc.addresses[0])[0] for rank, proc in zip(ranks, procs, strict=True)}
        self._mesh = procs[0].mesh
        suffix = shown.replace(", stream ", "_")
        control: ActorMesh[TensorControl] = root.spawn(f"tensor_control{suffix}", TensorControl, key)
        in_a_row = _in_a_row(control, ranks)
        settings = WorkerSettings(key, ranks, addresses, config.collective_s, config.max_lent, bool(suffix))
        self._workers = root.spawn(f"tensor_worker{suffix}", TensorWorker, settings, in_a_row)
        abort = partial(_abort, in_a_row)
        self.engine = TensorEngine(key, f"{root!r}{shown}", config, abort)
        self.ranks = Ranks(self.engine, root, _in_a_row(self._workers, ranks), in_a_row, abort, config.fence_s)
        self.engine.survey = self.ranks.survey
        rejoin = Rejoin(self.engine, self.ranks)
        self.engine.rejoins, self.engine.takes_in = rejoin.run, rejoin.take_in
        self.engine.lost_error = rejoin.lost_error
        self.engine.remedy = rejoin.remedy
        self.ranks.watch(ranks)

    def view_at(self, region: Region) -> View:
        """The view of some of the ranks."""
        if self.engine.broken is not None:
            self.engine.rejoins(region)
        if not self.engine.left_out.isdisjoint(region.base_ranks()):
            self.engine.takes_in(region)
        view = self.engine.views.get((region, False))
        if view is None:
            self.engine.check_present(tuple(region.base_ranks()))
            workers = self._workers._viewing(region)
            view = self.engine.views[region, False] = View(self.engine, region, workers, self._operations)
        return view

    def sharded_at(self, region: Region) -> View:
        """The view of the tensors that are sharded over some of the ranks."""
        view = self.engine.views.get((region, True))
        if view is None:
            self.engine.check_present(tuple(region.base_ranks()))
            workers = self._workers._viewing(region)
            view = View(self.engine, region, workers, self._sharded)
            extent, seed = region.extent, torch.initial_seed()
            spec = MeshSpec(self.engine.key, extent.names, extent.shape, view.ranks, seed, self.engine.device)
            view.mesh = self.engine.templates.define(("mesh", region), lambda: spec)
            self.engine.views[region, True] = view
        return view


_NEVER_S = 1e9

_opened: WeakKeyDictionary[ProcMesh, dict[Any, _Opened]] = WeakKeyDictionary()
"""The tensors of meshes of procs, by stream."""


class _Active(threading.local):
    stream: Any = None


_active = _Active()


def current_stream() -> Any:
    """The stream that is active in this thread; None for that of programs without any."""
    return _active.stream


@contextlib.contextmanager
def entered_stream(stream: Any) -> Iterator[None]:
    """Make a stream the active one of this thread."""
    before, _active.stream = _active.stream, stream
    try:
        yield
    finally:
        _active.stream = before


def engines_of(mesh: ProcMesh) -> list[TensorEngine]:
    """The engines of a mesh of procs: one for each stream."""
    return [opened.engine for opened in _opened.get(mesh.root, {}).values()]


def _in_a_row(control: ActorMesh[Any], ranks: tuple[int, ...]) -> ActorMesh[Any]:
    """The control actors along one dimension, ``procs``."""
    try:
        return control.flatten("procs")
    except ValueError as error:
        raise ValueError(f"this slice has gaps: activate the mesh of its {len(ranks)} procs first") from error


def _abort(control: ActorMesh[TensorControl], cause: str, epoch: int) -> None:
    """End the collectives of the ranks that live; on the driver, which must not wait for a connection to others."""
    for place in range(len(control.extent)):
        one = control.slice(procs=place)
        if is_reached(one):
            with contextlib.suppress(MonarchError):  # it has died, too
                one.abort.broadcast(cause, epoch)


def recovery_of(mesh: ProcMesh) -> Recovery:
    """The versions of the tensors of a mesh of procs, which are kept from here on; errors as of `view_of`.

    Raises:
        TypeError: the ranks hold what no version includes.
    """
    opened = _open(mesh, None)
    found = opened.engine.recovery
    if opened.engine.unhealable:
        raise TypeError(f"{mesh.root!r} keeps no versions: {opened.engine.unhealable}")
    if found is None:
        found = opened.engine.recovery = Recovery(opened.engine, opened.ranks)
    assert isinstance(found, Recovery)
    return found


def is_whole(view: View) -> bool:
    """Whether a view has all ranks of its engine that are left."""
    return len(view.ranks) == view.engine.num_ranks


def sharded_view_of(mesh: ProcMesh, device: str = "") -> View:
    """The view of the tensors that are sharded over a mesh of procs; errors as of `view_of`.

    Args:
        mesh: the procs.
        device: type of the device that has the parts; empty for that of the other tensors on these procs.

    Raises:
        ValueError: other tensors that are sharded over these procs are on another device.
    """
    opened = _open(mesh, None)
    engine = opened.engine
    if device and device != engine.device:
        if any(is_sharded for _, is_sharded in engine.views):
            raise ValueError(
                f"device={device!r}: tensors that are sharded over these procs are on {engine.device!r}; start other "
                "procs for this mesh, or give all of their meshes one device"
            )
        engine.device = device
    return opened.sharded_at(mesh.region)


def rank_view_of(mesh: ProcMesh) -> View:
    """The view of the tensors of which each rank has its own, outside of streams; errors as of `view_of`."""
    return _open(mesh, None).view_at(mesh.region)


def view_of(mesh: ProcMesh) -> View:
    """The view of a mesh of procs, or of a slice of one, in the active stream; opens its tensors at the first use.

    Raises:
        TypeError: it is not a mesh of procs.
        SpawnError: the procs did not start.
        DeviceMeshError: a rank is gone.
    """
    return _view_in(_active.stream, mesh)


def _view_in(stream: Any, mesh: ProcMesh) -> View:
    return _open(mesh, stream).view_at(mesh.region)


def _on_stream(root: ProcMesh, stream: Any, region: Region) -> View:
    return _open(root, stream if stream.is_own else None).view_at(region)


def _open(mesh: ProcMesh, stream: Any) -> _Opened:
    check_instance("mesh", mesh, ProcMesh, "a mesh of procs, as spawn_procs returns it")
    root = mesh.root
    streams = _opened.setdefault(root, {})
    opened = streams.get(stream)
    if opened is None:
        if stream is not None:
            _open(root, None).engine.forfeit(f"{stream!r} has tensors, which are in no version")
        reduce_in_messages(MeshTensor, lambda tensor: tensor._h.view.operations.lend(tensor))
        carry_custom_functions()
        with torch._C.DisableTorchFunction():
            opened = streams[stream] = _Opened(root, stream)
    return opened
