"""Meshes of procs, on which actors are spawned."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, check_arguments
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import completed
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.log_records import Level
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.arguments import check_flag, check_seconds, check_text, shown
from monarch_hpc.core.errors import ActorDied, TransportError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.actors import ActorMesh, check_names
from monarch_hpc.mesh.door import block, door_of
from monarch_hpc.mesh.output.choice import LogChoice, both, parse_level
from monarch_hpc.mesh.view import MeshView

if TYPE_CHECKING:
    from monarch_hpc.mesh.host import HostMesh

__all__ = ["ProcMesh", "check_actor", "proc_of"]

A = TypeVar("A", bound=Actor)


class ProcMesh(MeshView):
    """Procs of a program; the dimensions are those of the hosts followed by those of `per_host`.

    A mesh of procs can be passed to actors, which may spawn actors on it. The program or actor that started the procs
    owns them, and only the owner can stop them: not through a slice, nor through a mesh received in a message. The
    procs of an actor end with it.
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
        self._runtime = runtime or current_runtime()
        self._owned = owned

    def _viewing(self, region: Region) -> Self:
        whole = self._owned and len(region) == len(self._region)
        return type(self)(self._name, self._mesh, region, self._procs, self._runtime, owned=whole)

    def __reduce__(self) -> tuple[object, ...]:
        kept = {rank: self._procs[rank] for rank in self._region.base_ranks()}
        return ProcMesh, (self._name, self._mesh, self._region, kept)

    def __repr__(self) -> str:
        return f"<ProcMesh {self._name}, {self.extent}>"

    @property
    def procs(self) -> list[ProcRef]:
        """The procs of this view, row by row."""
        return [self._procs[rank] for rank in self._region.base_ranks()]

    def spawn(self, name: str, cls: type[A], *args: object, **kwargs: object) -> ActorMesh[A]:
        """Spawn an actor of class *cls* on every proc of this view and return their mesh.

        Does not wait for the constructors. A constructor that raises is reported as `ActorDied` by the first call, and
        as a failure to the owner, which is the spawning actor or the program: see `Actor`.

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
            ValueError: an endpoint has the name of an attribute of actor meshes, such as `stop`.
            ActorDied: a proc is gone.
        """
        check_actor(name, cls, args, kwargs)
        body, buffers = pack_spawn(name, self._region, cls, args, kwargs)
        actor = new_incarnation()
        try:
            self._runtime.spawn(name, actor, context().actor, dict(enumerate(self.procs)), body, buffers, self._region)
        except TransportError as error:
            raise ActorDied(f"a proc of {self._name}", str(error)) from error
        return ActorMesh(name, actor, cls, self._region, self._procs)

    @property
    def initialized(self) -> Future[Literal[True]]:
        """A future that is done already, with True: `spawn_procs` returns once all procs answer."""
        return completed(True)

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts of these procs, each once, in order: a single one without dimensions, several along ``hosts``."""
        from monarch_hpc.mesh.host import hosts_of  # it imports this module

        return hosts_of(door_of(self._runtime), [proc.host_rank for proc in self.procs])

    def to_table(self) -> str:
        """The procs as a text table, one line each: rank, coordinates, host and process id."""
        rows = [("rank", *self.extent.labels, "host", "pid")]
        for rank, proc in enumerate(self.procs):
            rows.append(
                (str(rank), *(str(place) for place in self.extent.point(rank).values()), proc.host, str(proc.pid))
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

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
            A future that is done when all procs have made the change; it need not be awaited.

        Raises:
            TypeError: an argument of another type.
            ValueError: a negative window, or an unknown level name.
            RuntimeError: this is the program's own process, as returned by `this_proc()`.
            ActorDied: a proc is gone.
        """
        if not self._mesh:
            raise RuntimeError("this is the program's own process: what it prints and logs is its own")
        if stream_to_client is not None:
            check_flag("stream_to_client", stream_to_client)
        if to_logging is not None:
            check_flag("to_logging", to_logging)
        window_s = aggregate_window_sec
        if window_s is not None:
            window_s = check_seconds("aggregate_window_sec", window_s, zero=True)
        number = None if level is None else parse_level(level)
        ranks = () if self._owned else tuple(proc.rank for proc in self.procs)
        choice = LogChoice(self._mesh, ranks, stream_to_client, window_s, to_logging)
        chosen = door_of(self._runtime).choose_logs(choice)
        setters = self.spawn("logging", Level)
        levels = setters.set.call(number)
        setters.stop()
        return both(chosen, levels)

    def stop(self, reason: str = "") -> Future[None]:
        """End all procs of the mesh; a proc that has not exited after `procs.stop_s` (config key) is killed.

        ``with procs:`` and ``async with procs:`` stop the procs at the end of the block, and wait.

        Args:
            reason: stands in the `ActorDied` of later calls to these procs; may be empty.

        Returns:
            A future that is done when all procs are gone, and fails with `TimeoutError` if a host does not report
            that. The procs end whether or not it is awaited.

        Raises:
            RuntimeError: this is a slice, or came in a message: only the owner can stop the procs.
            TypeError: the reason is not a string.
        """
        check_text("reason", reason)
        if not self._owned:
            raise RuntimeError(
                f"{self!r} is not owned here: only the caller of spawn_procs can stop the procs, "
                "through the mesh that it returned; this is a slice of that mesh, or came in a message"
            )
        return door_of(self._runtime).stop_procs(self._mesh, self._name, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._runtime.engine.forked_from:  # else the procs belong to the parent
            block(self._runtime, self.stop())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def proc_of(runtime: Runtime) -> ProcMesh:
    """The process of *runtime*, as a mesh of one proc without dimensions."""
    own = runtime.own
    return ProcMesh(f"proc {own.rank} on {own.host}", own.mesh, own.region, {own.rank: own}, runtime)


def check_actor(name: object, cls: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Refuse a class or arguments that cannot be spawned, before anything is sent.

    Raises:
        TypeError: the name is not a string, *cls* is not a subclass of `Actor`, or its constructor does not take the
            arguments.
        ValueError: an endpoint has the name of an attribute of actor meshes.
    """
    check_text("name, the first argument of spawn,", name)
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise TypeError(f"spawn takes a subclass of Actor, then its constructor's arguments, not {shown(cls)}")
    check_names(cls)
    check_arguments(f"{cls.__name__}.__init__", inspect.signature(cls.__init__), args, kwargs)
