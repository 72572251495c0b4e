"""Meshes of procs, on which actors are spawned."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import completed
from monarch_hpc.actor.messages.creator import pack_creator
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.log_records import Level
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.arguments import check_seconds, check_text
from monarch_hpc.core.errors import EngineFailed, ProcDied, SpawnError, TransportError
from monarch_hpc.core.ids import new_incarnation, number_in_program
from monarch_hpc.core.shape import Region
from monarch_hpc.core.text.columns import text_table
from monarch_hpc.core.text.description import qualified_name
from monarch_hpc.mesh.actors import ActorMesh, check_actor
from monarch_hpc.mesh.door import block, door_of
from monarch_hpc.mesh.launch import Launch
from monarch_hpc.mesh.output.choice import LogChoice, both, check_choice, parse_level
from monarch_hpc.mesh.output.watch import ProcWatch, watch
from monarch_hpc.mesh.view import ShownRows, TensorProcs, hosts_of
from monarch_hpc.wire.frames import Buffer

if TYPE_CHECKING:
    import os

    from monarch_hpc.mesh.healing.heal import Healed
    from monarch_hpc.mesh.host import HostMesh

__all__ = ["ProcMesh", "mesh_around", "proc_of"]

A = TypeVar("A", bound=Actor)


class ProcMesh(TensorProcs):
    """Procs of a program; the dimensions are those of the hosts followed by those of `per_host`.

    A mesh of procs can be passed to actors, which may spawn actors on it. The program or actor that started the procs
    owns them, and only it can stop them, not through a slice or a received mesh. The procs of an actor end with it.
    """

    def __init__(
        self,
        name: str,
        mesh: int,
        region: Region,
        procs: Mapping[int, ProcRef],
        runtime: Runtime | None = None,
        *,
        owned: bool = False,
    ) -> None:
        super().__init__(region)
        self._name = name
        self._mesh = mesh
        self._procs = procs
        self._launch = procs if isinstance(procs, Launch) else None
        self._runtime = runtime or current_runtime()
        self._owned = owned
        self._root: ProcMesh | None = None
        self._kept = ""

    def _viewing(self, region: Region) -> Self:
        whole = self._owned and len(region) == len(self._region)
        view = type(self)(self._name, self._mesh, region, self._procs, self._runtime, owned=whole)
        view._root = self.root
        return view

    def _healable(self) -> tuple[str, Mapping[int, ProcRef]]:
        return self._shown, self._procs

    def __reduce__(self) -> tuple[object, ...]:
        kept = {rank: self._procs[rank] for rank in self._region.base_ranks()}
        return _receive, (self._shown, self._number, self._region, kept)

    def __repr__(self) -> str:
        return f"<ProcMesh {self._shown}, {self.extent}>"

    def _shown_rows(self) -> ShownRows:
        return hosts_of(self._procs)

    @property
    def _shown(self) -> str:
        number = self._mesh if self._launch is None else self._launch.known_mesh
        return self._name or (f"procs{number_in_program(number)}" if number else "procs")

    @property
    def _number(self) -> int:
        return self._mesh if self._launch is None else self._launch.mesh

    @property
    def procs(self) -> list[ProcRef]:
        """The procs of this view, row by row; waits for them if they start.

        Raises:
            SpawnError: they did not start.
        """
        return [self._procs[rank] for rank in self._region.base_ranks()]

    def spawn(self, name: str, cls: type[A], *args: object, **kwargs: object) -> ActorMesh[A]:
        """Spawn an actor of class *cls* on every proc of this view and return their mesh.

        Waits neither for the procs nor for the constructors. A constructor that raises is reported as `ActorDied` by
        the first call, and as a failure to the owner, which is the spawning actor or the program: see `Actor`.

        Args:
            name: name of the actors in errors, logs and `status`.
            cls: the class of the actors.
            *args: arguments of the constructor, the same on every proc.
            **kwargs: keyword arguments of the constructor, the same on every proc.

        Returns:
            The actors, with the dimensions of this view.

        Raises:
            TypeError: the name is not a string, *cls* is not a subclass of `Actor`, its constructor does not take these
                arguments, or one of them cannot be pickled; nothing was sent.
            ValueError: the name is empty, or an endpoint has the name of an attribute of actor meshes, such as `stop`.
            ProcDied: a proc is gone.
            SpawnError: the procs did not start, and that is known already.
        """
        check_actor(name, cls, args, kwargs)
        here = context()
        creator = pack_creator(here, self._runtime.own)
        body, buffers = pack_spawn(name, self._region, creator, cls, args, kwargs)
        actor, owner = new_incarnation(), here.actor
        if self._launch is not None:
            self._launch.check()

            def later(failure: SpawnError | None, copies: Sequence[Buffer]) -> None:
                if failure is None:
                    with contextlib.suppress(ProcDied):  # calls to the actor say so, too
                        self._spawn(name, actor, owner, cls, body, copies)

            if self._launch.defer(later, body, buffers):
                return ActorMesh(name, actor, cls, self._region, self._procs)
        self._spawn(name, actor, owner, cls, body, buffers)
        kept = {rank: self._procs[rank] for rank in self._region.base_ranks()}
        return ActorMesh(name, actor, cls, self._region, self._runtime.incarnations.of(actor, kept))

    def _spawn(
        self, name: str, actor: int, owner: int, cls: type[Actor], body: bytes, buffers: Sequence[Buffer]
    ) -> None:
        procs, runtime = dict(enumerate(self.procs)), self._runtime
        try:
            runtime.spawn(name, actor, owner, procs, body, buffers, self._region, qualified_name(cls))
            if self._number and door_of(runtime).is_program:
                runtime.ownership.keep(actor, self._number, self._region, cls, body, buffers)
        except EngineFailed:
            raise
        except TransportError as error:
            raise ProcDied(f"a proc of {self._shown}", str(error)) from error

    @property
    def root(self) -> ProcMesh:
        """The mesh that this is a slice of, as `spawn_procs` returned it, or as it came in a message."""
        return self._root or self

    @property
    def region(self) -> Region:
        """The place of these procs among all procs that were started with them."""
        return self._region

    @property
    def initialized(self) -> Future[Literal[True]]:
        """A future that is done with True once all procs answer and have run `bootstrap`; it can be read repeatedly.

        It fails with the `SpawnError` of a proc that did not start, whose note names the line that asked for it.
        """
        return completed(True) if self._launch is None else self._launch.initialized()

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts of these procs, each once, in order: a single one without dimensions, several along ``hosts``."""
        from monarch_hpc.mesh.host import hosts_of  # it imports this module

        procs = self.procs
        return hosts_of(door_of(self._runtime), procs[0].allocation, [proc.host_rank for proc in procs])

    def to_table(self) -> str:
        """The procs as a text table, one line each: rank, coordinates, host and process id."""
        rows: list[Sequence[object]] = [("rank", *self.extent, "host", "pid")]
        for rank, proc in enumerate(self.procs):
            rows.append((rank, *self.extent.point(rank).values(), proc.host, proc.pid))
        return text_table(rows)

    def watch(self, interval_s: float = 1.0) -> ProcWatch:
        """Show what each proc runs, in a notebook's cell or on stderr, up to date until `ProcWatch.stop`."""
        place = door_of(self._runtime).place(self.procs[0].allocation)
        return watch(*place, self._number, self._shown, self._region, check_seconds("interval_s", interval_s))

    def logging_option(
        self,
        stream_to_client: bool | None = None,
        aggregate_window_sec: float | None = None,
        level: int | str | None = None,
        *,
        to_logging: bool | None = None,
    ) -> Future[None]:
        """Choose how the output and log records of the procs in this view are treated from here on.

        An argument that is None takes its value from section `logs` of the configuration, whatever was chosen before.

        Args:
            stream_to_client: whether the program shows the output; the run's files have it in any case.
            aggregate_window_sec: seconds within which equal lines are folded into one; 0 folds nothing. Applies to the
                whole mesh, also to procs outside this view.
            level: lowest level of the `logging` records that are forwarded, a number or a name; in procs whose code
                does not configure logging itself.
            to_logging: whether records go to the program's own `logging`, as loggers ``monarch_hpc.remote.NAME`` with
                the attributes `mesh`, `rank`, `host` and `actor`, instead of being printed. Applies to the whole mesh.

        Returns:
            A future that is done when all procs have made the change. It need not be awaited; `asyncio.run` takes it.

        Raises:
            TypeError: an argument of another type.
            ValueError: a negative window, or an unknown level name.
            RuntimeError: this is the program's own process, as returned by `this_proc()`.
            ProcDied: a proc is gone.
        """
        if not (self._mesh or self._launch):
            raise RuntimeError("this is the program's own process: what it prints and logs is its own")
        stream_to_client, window_s, to_logging = check_choice(stream_to_client, aggregate_window_sec, to_logging)
        number = None if level is None else parse_level(level)

        def choose() -> Future[None]:
            return self._choose_logs(stream_to_client, window_s, number, to_logging)

        return choose() if self._launch is None else self._launch.after(choose, f"the log settings of {self!r}")

    def _choose_logs(
        self, stream_to_client: bool | None, window_s: float | None, level: int | None, to_logging: bool | None
    ) -> Future[None]:
        ranks = () if self._owned else tuple(proc.rank for proc in self.procs)
        choice = LogChoice(self._number, ranks, stream_to_client, window_s, to_logging)
        chosen = door_of(self._runtime).choose_logs(choice)
        setters = self.spawn("logging", Level)
        levels = setters.set.call(level)
        # Not before: procs on a busy host may take longer for it than actors have that are told to stop.
        levels.add_done_callback(lambda _levels: setters.stop())
        return both(chosen, levels)

    @property
    def heals(self) -> int:
        """How many times procs of this view were started again, as far as this process knows; waits for their start."""
        return sum(proc.restarts for proc in self.procs)

    def heal(
        self, policy: str | Sequence[str] = ("respawn", "spares", "shrink"), timeout: float | None = None
    ) -> Healed[Self]:
        """Bring dead procs of this view back, with their actors; see `heal_mesh`."""
        from monarch_hpc.mesh.healing.heal import heal_mesh  # which many programs never need

        return heal_mesh(self, policy, timeout)

    def checkpoint(self, folder: str | os.PathLike[str] | None = None) -> int:
        """Keep the states of the actors on these procs: what their ``__checkpoint__`` returns; blocks until all have.

        It asks the actors that the program has spawned here and whose class has that method, each once it has handled
        the messages that came before; so a checkpoint is consistent if nothing else calls them meanwhile. An actor that
        is made again gets its state of the last checkpoint in ``__restore__``. A checkpoint that fails on one rank
        leaves the last one in force.

        Args:
            folder: a private folder that the program and all hosts share. Each proc writes its own files there, whole
                or not at all; the last two checkpoints are kept. One program at a time. None keeps the states in the
                program's memory.

        Returns:
            The number of actors.

        Raises:
            TypeError: *folder* is not a path, or a class has no ``__restore__``.
            RuntimeError: this is not the program, or the mesh was stopped.
            MeshDied: actors are gone.
            ConfigError: others can read or change the folder.
            Exception: ``__checkpoint__`` raised it, or pickling, or the file system.
        """
        from monarch_hpc.mesh.healing.checkpoint import take_checkpoint  # likewise

        procs = self._procs if self._launch is None else self._launch.settle()  # actors may wait to be spawned
        ranks = list(self._region.base_ranks())
        return take_checkpoint(self._runtime, self._shown, self._number, ranks, procs, folder)

    def keep(self, name: str) -> None:
        """Have these procs and their actors stay when this program and its run end, for later ones; blocks until then.

        `monarch_hpc.kept` opens them. They end with ``monarch-hpc mesh stop``, with the allocation, or with its release
        because no run uses it. No policy restarts them, and neither `stop` nor `heal` is possible any more.

        Args:
            name: 1 to 64 letters, digits, ``.``, ``_`` or ``-``, which no other kept mesh of the allocation has.

        Raises:
            AllocationError: the name is taken or invalid, or the allocation ends with this program.
            ProcDied: all procs are dead.
            RuntimeError: this is a slice, an actor has started them, or they were stopped.
            SpawnError: the procs did not start.
            ValueError: they have a restart policy.
        """
        check_text("name", name, filled=True)
        self._check_owned("keep")
        if self._launch is not None:
            self._launch.settle()
        door_of(self._runtime).keep_procs(self._number, name)
        self.root._kept = name

    def stop(self, reason: str = "") -> Future[None]:
        """End all procs of the mesh, also while they start.

        A proc that has not exited after `procs.stop_s` (config key) is killed.

        ``with procs:`` and ``async with procs:`` stop the procs at the end of the block, and wait.

        Args:
            reason: stands in the `ActorDied` of later calls to these procs; may be empty.

        Returns:
            A future that is done when all procs are gone, and fails with `TimeoutError` if a host does not report
            that. The procs end whether or not it is awaited.

        Raises:
            RuntimeError: this is a slice, or came in a message: only the owner can stop the procs; or they are kept.
            TypeError: the reason is not a string.
        """
        check_text("reason", reason)
        self._check_owned("stop")
        if self.root._kept:
            raise RuntimeError(f"{self!r} is kept: monarch_hpc.kept({self.root._kept!r}).stop() ends it")
        if self._launch is not None:
            return self._launch.stop(reason)
        return door_of(self._runtime).stop_procs(self._mesh, self._name, reason)

    def _check_owned(self, verb: str) -> None:
        if not self._owned:
            raise RuntimeError(
                f"{self!r} is not owned here: only the caller of spawn_procs can {verb} the procs, "
                "through the mesh that it returned; this is a slice of that mesh, or came in a message"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._runtime.engine.forked_from and not self.root._kept:  # else the procs belong to the parent
            block(self._runtime, self.stop())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.root._kept:
            await self.stop()


def mesh_around(name: str, region: Region, procs: Mapping[int, ProcRef], runtime: Runtime) -> ProcMesh:
    """The procs of *region* as a mesh, out of the *procs* of a mesh by rank, which others own."""
    kept = {rank: procs[rank] for rank in region.base_ranks()}
    mesh = kept[region.base_rank(0)].mesh
    return ProcMesh(name, mesh, region, runtime.incarnations.of(mesh, kept) if mesh else kept, runtime)


_own: ProcMesh | None = None


def proc_of(runtime: Runtime) -> ProcMesh:
    """The process of *runtime*, as a mesh of one proc without dimensions: the same object at each call."""
    global _own
    own = runtime.own
    if _own is None or _own._runtime is not runtime or _own._procs.get(own.rank) is not own:
        _own = ProcMesh(f"proc {own.rank} on {own.host}", own.mesh, own.region, {own.rank: own}, runtime)
    return _own


def _receive(name: str, mesh: int, region: Region, procs: Mapping[int, ProcRef]) -> ProcMesh:
    """Return a mesh that came in a message; its procs are the current ones, as far as this process knows."""
    runtime = current_runtime()
    return ProcMesh(name, mesh, region, runtime.incarnations.of(mesh, procs), runtime)
