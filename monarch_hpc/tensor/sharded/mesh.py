"""Meshes with sharded tensors: ordinary torch code in the program on values of which each rank holds a part."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from monarch_hpc.core.arguments import check_flag, check_instance, check_number, shown
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.host import HostMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.active import capture_sharded
from monarch_hpc.tensor.opening import is_whole, rank_view_of, recovery_of, sharded_view_of
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.sharded.calls import call_by_name, new_tensor
from monarch_hpc.tensor.sharded.communication import Communication
from monarch_hpc.tensor.sharded.functions import execute
from monarch_hpc.tensor.sharded.memory import MemoryRow, held_tensors
from monarch_hpc.tensor.sharded.procs import arranged, check_devices, started
from monarch_hpc.tensor.sharded.spec import ShardingSpec, extent_of, place_dims, size_of
from monarch_hpc.tensor.stream.engine import View

if TYPE_CHECKING:
    from monarch_hpc.tensor.training.checkpoint import Saving

__all__ = ["Mesh"]


class Mesh:
    """Ranks in a grid, over which tensors are sharded.

    Args:
        shape: sizes of the dimensions, outermost first.
        mesh_dim_names: their names; of *procs* or ``dim0``, ``dim1``, ... if None.
        hosts: where to start as many procs, evenly on all hosts; `monarch_hpc.hosts()` if None.
        procs: procs to use instead, row by row.
        commit: whether each step of an optimizer on tensors of the whole mesh is a version, to which `heal` can return;
            without it, a mesh that has lost a rank is over.
        on_loss: ``raise`` raises a `DeviceMeshError` where the mesh has lost a rank; ``heal`` heals it there, and has
            the ranks execute again what was issued since the version, so that the program sees a pause only. Where that
            is not possible, the error says why.
        device: where the ranks have their parts: ``cpu``, or ``cuda`` for the first GPU that each proc sees. All meshes
            of the same procs have one. It has never run on a GPU. Start *procs* for it with the variables that
            docs/tensors.md names.

    Attributes:
        procs: the procs, with the dimensions of the mesh; fewer after a heal that has left ranks out.

    Raises:
        TypeError: an argument is of another type, or both *hosts* and *procs* are given.
        ValueError: the sizes do not fit the names, or the number of procs or hosts; or a rank has no such device.
    """

    def __init__(
        self,
        shape: Sequence[int] | None = None,
        mesh_dim_names: Sequence[str] | None = None,
        *,
        hosts: HostMesh | None = None,
        procs: ProcMesh | None = None,
        commit: bool = True,
        on_loss: Literal["raise", "heal"] = "raise",
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        if procs is not None and hosts is not None:
            raise TypeError("Mesh of hosts= and procs=: give one")
        if procs is not None:
            check_instance("procs", procs, ProcMesh, "a mesh of procs, as spawn_procs returns it")
        if shape is None:
            if procs is None:
                raise TypeError("Mesh(shape): the sizes of its dimensions, such as (4, 2)")
            extent = extent_of(procs.region.extent.shape, mesh_dim_names or procs.region.extent.names)
        else:
            extent = extent_of(shape, mesh_dim_names)
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device is {shown(device)}; it is 'cpu', or 'cuda' for the GPU that each proc sees")
        self._device: str = device
        self._commits = check_flag("commit", commit)
        if on_loss not in ("raise", "heal"):
            raise ValueError(f"on_loss is {shown(on_loss)}; it is 'raise' or 'heal'")
        if on_loss == "heal" and not commit:
            raise ValueError("on_loss='heal' needs versions to go back to: leave out commit=False")
        self._heals = on_loss == "heal"
        self.procs = self._owned = started(extent, hosts, device) if procs is None else arranged(procs, extent)
        if device != "cpu":
            try:
                check_devices(rank_view_of(self.procs), device)
                _ = self._view  # which refuses a device that other meshes of these procs do not have
            except BaseException:
                if procs is None:
                    self.stop(f"they lack device={device!r}")
                raise

    def _of(self, procs: ProcMesh) -> Mesh:
        made = Mesh.__new__(Mesh)
        made.procs = made._owned = procs
        made._commits = made._heals = False
        made._device = self._device
        return made

    # ---- shape ----

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self._region.extent.shape

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        """Their names."""
        return self._region.extent.names

    @property
    def _region(self) -> Region:
        return self.procs.region

    @property
    def _view(self) -> View:
        view = sharded_view_of(self.procs, self._device)
        engine = view.engine
        if self._commits and is_whole(view) and engine.recovery is None and not engine.unhealable:
            recovery_of(self.procs)
        if self._heals and engine.log is None and engine.recovery is not None:
            from monarch_hpc.tensor.healing.automatic import heal_by_itself  # it heals what this module makes

            heal_by_itself(view, recovery_of(self.procs))
        return view

    def size(self, dim: str | None = None) -> int:
        """The number of ranks, or the size of a dimension."""
        return len(self._region) if dim is None else self._region.extent[dim]

    def slice(self, **selection: int | slice) -> Mesh:
        """Part of the mesh, as of `ProcMesh.slice`; its tensors are on its ranks only."""
        return self._of(self.procs.slice(**selection))

    def split(self, **selection: Sequence[str] | int) -> Mesh:
        """The mesh with a dimension split into several, as of `ProcMesh.split`."""
        return self._of(self.procs.split(**selection))

    def flatten(self, name: str) -> Mesh:
        """The mesh as one dimension, as of `ProcMesh.flatten`."""
        return self._of(self.procs.flatten(name))

    def __repr__(self) -> str:
        return f"Mesh({self._region.extent})"

    # ---- tensors ----

    def full(
        self,
        size: Sequence[int],
        fill_value: float,
        *,
        spec: ShardingSpec | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> MeshTensor:
        """A tensor of one value.

        Args:
            size: its shape.
            fill_value: the value.
            spec: see `distribute`.
            dtype: type of elements; torch's default, or that of *fill_value* if it is not a float.
            requires_grad: whether autograd records operations on it.

        Raises:
            KeyError: the mesh has no dimension of a name in *spec*.
            ValueError: *spec* is too long, or names a dimension twice.
        """
        if dtype is None:
            with torch._C.DisableTorchFunction():
                dtype = torch.full((), fill_value).dtype
        return self._made("full", tuple(size), fill_value, spec, dtype, requires_grad)

    def zeros(self, *size: Any, **options: Any) -> MeshTensor:
        """A tensor of zeros; see `full`."""
        return self._made("full", size_of(size), 0.0, **_options(options))

    def ones(self, *size: Any, **options: Any) -> MeshTensor:
        """A tensor of ones; see `full`."""
        return self._made("full", size_of(size), 1.0, **_options(options))

    def rand(self, *size: Any, **options: Any) -> MeshTensor:
        """Random numbers in [0, 1): those that one process draws, whatever the mesh; see `full` and `manual_seed`."""
        return self._made("rand", size_of(size), None, **_options(options))

    def randn(self, *size: Any, **options: Any) -> MeshTensor:
        """Random numbers of a normal distribution; see `rand`."""
        return self._made("randn", size_of(size), None, **_options(options))

    def _made(
        self,
        kind: str,
        size: tuple[int, ...],
        fill: Any,
        spec: ShardingSpec | None,
        dtype: torch.dtype | None,
        requires_grad: bool,
    ) -> MeshTensor:
        for one in size:
            check_number("a size", one, least=0)
        dims = place_dims(spec, len(size), self._region.extent)
        dtype = dtype or torch.get_default_dtype()
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise RuntimeError(f"only floats and complex numbers can require a gradient, not {dtype}")
        view = self._view
        number = call_by_name(view, "made", [kind, size, dims, dtype, fill, requires_grad], [])
        return new_tensor(number, view, size, dtype, requires_grad)

    def manual_seed(self, seed: int) -> None:
        """Restart the random numbers of this mesh. Until then they are those of the program's seed at its first use."""
        check_number("seed", seed, least=0)
        view = self._view
        call_by_name(view, "seed", [seed], [], 0)
        if view.engine.recovery is not None:
            if recovery_of(self.procs).is_preparing:
                self.begin_version()
            else:
                view.engine.recovery.note_change()

    # ---- functions ----

    def execute(
        self, function: Callable[..., Any], *args: Any, propagate: Callable[..., Any] | None = None, **kwargs: Any
    ) -> Any:
        """Run *function* on all ranks; its tensors are DTensors, and those of its result become sharded ones.

        Tensors of the program among the arguments are sent to all ranks. The first call of a function with arguments
        of certain shapes waits for those of the result; not with *propagate*, see `remote`.

        Raises:
            ValueError: an argument is on another mesh, or not sharded.
        """
        return execute(self._view, function, args, kwargs, propagate)

    def capture(
        self,
        function: Callable[..., Any] | None = None,
        *,
        verify: bool = False,
        lower: bool = True,
        graphs: bool = False,
    ) -> Any:
        """See `ProcMesh.capture`.

        Args:
            lower: whether ranks replay it below DTensor and autograd, where bits stay the same.
            graphs: whether they replay operators on a GPU as CUDA graphs there. This has never run on a GPU.

        Raises:
            ValueError: *graphs* without *lower*.
        """
        return capture_sharded(self.procs, function, verify, lower, graphs)

    def communication(self) -> Communication:
        """Count what operations imply between ranks: ``with mesh.communication() as found: ...; print(found)``."""
        return Communication(self._view)

    def memory(self) -> list[MemoryRow]:
        """The tensors of this mesh that the program holds, by shape and type, the largest first."""
        return held_tensors(self._view)

    def sync(self) -> None:
        """Wait until the ranks have done all that was issued.

        Raises:
            DeviceMeshError: a rank is gone.
            Exception: an operation failed whose result was never read.
        """
        self._view.engine.sync()

    # ---- checkpoints ----

    def save(self, state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        """Save a checkpoint in a new folder that all hosts see; each rank writes its part, in torch's format (DCP).

        Args:
            state: by name: sharded tensors, nested in mappings and lists with values that can be pickled, or what has
                `state_dict`: modules, optimizers, schedulers, scalers. The random numbers of the mesh are saved, too.
            path: the folder.

        Raises:
            DeviceMeshError: a rank is gone.
            FileExistsError: the folder has a checkpoint already.
            OSError: a rank could not write.
            ValueError: a tensor is on another mesh, or each rank has a value of its own.
        """
        from monarch_hpc.tensor.training.checkpoint import save

        save(self._view, state, path, background=False)

    def async_save(self, state: Mapping[str, Any], path: str | os.PathLike[str]) -> Saving:
        """Save likewise, while the ranks go on: what is saved are the values at this point of the program.

        The ranks hold a copy of their parts until these are written. Errors of writing are raised by `Saving.wait`.

        Raises:
            ValueError: as of `save`.
        """
        from monarch_hpc.tensor.training.checkpoint import save

        return save(self._view, state, path, background=True)

    def load(self, state: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
        """Load a checkpoint, which may be of another mesh, into the tensors and objects of *state*.

        Args:
            state: as for `save`; entries may be left out. Values that are not tensors stand for saved ones.
            path: the folder.

        Returns:
            *state*, with plain values as they were saved.

        Raises:
            DeviceMeshError: a rank is gone.
            FileNotFoundError: there is no complete checkpoint.
            KeyError: it lacks an entry; nothing was loaded.
            ValueError: a tensor has another shape in it; nothing was loaded.
        """
        from monarch_hpc.tensor.training.checkpoint import load

        view = self._view
        engine = view.engine
        if engine.recovery is not None:
            engine.recovery.note_change()
        loaded = load(view, state, path)
        if engine.recovery is not None:
            self.begin_version()
            engine.wait()
        return loaded

    # ---- ranks that die ----

    @property
    def version(self) -> int:
        """The number of optimizer steps that are known to be done on all ranks, without those under way.

        -1 if there are no versions: with ``commit=False``, and with modules or optimizers that live on the ranks.
        """
        return -1 if self._view.engine.recovery is None else recovery_of(self.procs).num_steps

    def begin_version(self) -> None:
        """Issue what `commit` does, without waiting, if tensors of this mesh have versions."""
        view = self._view
        if view.engine.recovery is not None and is_whole(view):
            recovery_of(self.procs).commit(view, num_steps=0)

    def commit(self) -> None:
        """Make the state as it is now the one that `heal` goes back to, as an optimizer step does; waits for it.

        For changes that no optimizer makes, and for tensors that are made before the first step: those that
        `module_to_mesh` has not made.

        Raises:
            DeviceMeshError: a rank is gone.
            TypeError: modules or optimizers live on the ranks, which no version includes.
            Exception: an operation failed, and nobody has read its result.
        """
        recovery_of(self.procs).commit(self._view, num_steps=0)
        self.sync()

    def heal(
        self,
        policy: str | Sequence[str] = ("respawn", "spares", "shrink"),
        timeout: float | None = None,
        *,
        rewind: bool = False,
        checkpoint: Callable[[Mesh], object] | None = None,
    ) -> Mesh:
        """Bring this mesh back after a `DeviceMeshError`; see `monarch_hpc.distributed.heal_mesh`."""
        from monarch_hpc.tensor.healing.heal import heal_mesh  # it heals what this module makes

        return heal_mesh(self, policy, timeout, rewind=rewind, checkpoint=checkpoint)

    def grow(self, policy: str | Sequence[str] = ("respawn", "spares"), timeout: float | None = None) -> Mesh:
        """Have ranks back that a heal has left out; see `monarch_hpc.distributed.grow_mesh`."""
        from monarch_hpc.tensor.healing.heal import grow_mesh  # likewise

        return grow_mesh(self, policy, timeout)

    def stop(self, reason: str = "") -> None:
        """End the procs, those that a heal has left out too; see `ProcMesh.stop`."""
        self._owned.stop(reason).get()


def _options(options: dict[str, Any]) -> dict[str, Any]:
    known = {"spec": None, "dtype": None, "requires_grad": False}
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; there are: {', '.join(known)}")
    return {**known, **options}
