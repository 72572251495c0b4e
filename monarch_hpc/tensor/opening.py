"""Opens the tensors of a mesh of procs: spawns a worker and a control actor in each, once for each mesh."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch

from monarch_hpc.config.load import load
from monarch_hpc.core.arguments import check_instance
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.custom_functions import carry_custom_functions
from monarch_hpc.tensor.healing.ranks import Ranks
from monarch_hpc.tensor.healing.recovery import Recovery
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

__all__ = ["recovery_of", "sharded_view_of", "view_of"]


class _Opened:
    """The tensors of a mesh of procs."""

    def __init__(self, root: ProcMesh) -> None:
        procs = root.procs
        ranks = tuple(root.region.base_ranks())
        config = load().config.tensor
        addresses = {rank: parse_address(proc.addresses[0])[0] for rank, proc in zip(ranks, procs, strict=True)}
        key, mesh = new_incarnation(), procs[0].mesh
        control: ActorMesh[TensorControl] = root.spawn("tensor_control", TensorControl, key)
        in_a_row = _in_a_row(control, ranks)
        settings = WorkerSettings(key, ranks, addresses, config.collective_s, config.max_lent)
        self._workers = root.spawn("tensor_worker", TensorWorker, settings, in_a_row)
        abort = partial(_abort, in_a_row)
        self.engine = TensorEngine(key, repr(root), config, abort)
        self.ranks = Ranks(self.engine, root, _in_a_row(self._workers, ranks), in_a_row, abort, config.fence_s)
        self._operations = MeshOperations(view_of, self.view_at, self.sharded_at, mesh)
        self._sharded = ShardedOperations(view_of, self.view_at, self.sharded_at, mesh)
        self.engine.survey = self.ranks.survey
        self.ranks.watch(ranks)

    def view_at(self, region: Region) -> View:
        """The view of some of the ranks."""
        view = self.engine.views.get((region, False))
        if view is None:
            workers = self._workers._viewing(region)
            view = self.engine.views[region, False] = View(self.engine, region, workers, self._operations)
        return view

    def sharded_at(self, region: Region) -> View:
        """The view of the tensors that are sharded over some of the ranks."""
        view = self.engine.views.get((region, True))
        if view is None:
            workers = self._workers._viewing(region)
            view = View(self.engine, region, workers, self._sharded)
            spec = MeshSpec(self.engine.key, region.extent.names, region.extent.shape, view.ranks, torch.initial_seed())
            view.mesh = self.engine.templates.define(("mesh", region), lambda: spec)
            self.engine.views[region, True] = view
        return view


_opened: WeakKeyDictionary[ProcMesh, _Opened] = WeakKeyDictionary()


def _in_a_row(control: ActorMesh[Any], ranks: tuple[int, ...]) -> ActorMesh[Any]:
    """The control actors along one dimension, ``procs``."""
    try:
        return control.flatten("procs")
    except ValueError as error:
        raise ValueError(f"this slice has gaps: activate the mesh of its {len(ranks)} procs first") from error


def _abort(control: ActorMesh[TensorControl], cause: str) -> None:
    """End the collectives of the ranks that live; on the driver, which must not wait for a connection to others."""
    for place in range(len(control.extent)):
        one = control.slice(procs=place)
        if is_reached(one):
            with contextlib.suppress(MonarchError):  # it has died, too
                one.abort.broadcast(cause)


def recovery_of(mesh: ProcMesh) -> Recovery:
    """The versions of the tensors of a mesh of procs, which are kept from here on; errors as of `view_of`.

    Raises:
        TypeError: the ranks hold what no version includes.
    """
    view_of(mesh)
    opened = _opened[mesh.root]
    found = opened.engine.recovery
    if opened.engine.unhealable:
        raise TypeError(f"{mesh.root!r} keeps no versions: {opened.engine.unhealable}")
    if found is None:
        found = opened.engine.recovery = Recovery(opened.engine, opened.ranks)
    assert isinstance(found, Recovery)
    return found


def sharded_view_of(mesh: ProcMesh) -> View:
    """The view of the tensors that are sharded over a mesh of procs; errors as of `view_of`."""
    view_of(mesh)
    return _opened[mesh.root].sharded_at(mesh.region)


def view_of(mesh: ProcMesh) -> View:
    """The view of a mesh of procs, or of a slice of one; opens its tensors at the first use.

    Raises:
        TypeError: it is not a mesh of procs.
        SpawnError: the procs did not start.
        DeviceMeshError: a rank is gone.
    """
    check_instance("mesh", mesh, ProcMesh, "a mesh of procs, as spawn_procs returns it")
    root = mesh.root
    opened = _opened.get(root)
    if opened is None:
        reduce_in_messages(MeshTensor, lambda tensor: tensor._h.view.operations.lend(tensor))
        carry_custom_functions()
        with torch._C.DisableTorchFunction():
            opened = _opened[root] = _Opened(root)
    return opened.view_at(mesh.region)
