"""The mesh of hosts: a program's view of its allocation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

from monarch_hpc.actor.context import context
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import completed
from monarch_hpc.actor.runtime.mpi import check_world
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.agent.resources.binding import check_bindings
from monarch_hpc.core.arguments import (
    check_flag,
    check_mapping,
    check_number,
    check_path,
    check_text,
    check_texts,
    check_variables,
    shown,
)
from monarch_hpc.core.ids import number_in_program
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.bootstrap import Bootstrap, check_bootstrap, run_bootstrap
from monarch_hpc.mesh.bootstrap_command import BootstrapCommand, variables_of
from monarch_hpc.mesh.door import ProgramDoor, block, current_door, door_of
from monarch_hpc.mesh.plan import ProcPlan
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.view import MeshView
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.procs import MAX_PROCS_PER_HOST

__all__ = ["HostMesh", "hosts_of"]


class HostMesh(MeshView):
    """Hosts of an allocation; `hosts` returns all of them, along the dimension ``hosts``.

    A mesh of hosts can be passed to actors, which may start procs on it. Only the program can stop it.

    Args:
        entries: resources granted on each host, by base rank.
        python: the interpreter that procs run in; empty for the agents' interpreter.
        owned: whether this is the mesh of all hosts that `hosts` returned, not a slice or a copy from a message.
    """

    def __init__(
        self, region: Region, entries: Mapping[int, HostEntry], python: str = "", *, owned: bool = False
    ) -> None:
        super().__init__(region)
        self._entries = entries
        self._python = python
        self._owned = owned

    def _viewing(self, region: Region) -> Self:
        whole = self._owned and len(region) == len(self._region)
        return type(self)(region, self._entries, self._python, owned=whole)

    def __reduce__(self) -> tuple[object, ...]:
        kept = {rank: self._entries[rank] for rank in self._region.base_ranks()}
        return HostMesh, (self._region, kept, self._python)

    def __repr__(self) -> str:
        return f"<HostMesh {self.extent}: {', '.join(entry.name for entry in self.entries)}>"

    @property
    def entries(self) -> list[HostEntry]:
        """Resources granted on each host of this view, row by row."""
        return [self._entries[rank] for rank in self._region.base_ranks()]

    @property
    def initialized(self) -> Future[Literal[True]]:
        """A future that is done already, with True: a mesh exists only once its hosts were reached."""
        return completed(True)

    def with_python_executable(self, python_executable: str | os.PathLike[str]) -> Self:
        """The same hosts, whose procs run in another interpreter; so do procs of `this_host()` in those procs.

        Args:
            python_executable: path of an interpreter on the hosts. It must have this version of Python and of
                monarch-hpc; otherwise `spawn_procs` raises.

        Raises:
            TypeError: neither a string nor a path.
            ValueError: the path is empty.
        """
        python = check_path("python_executable", python_executable)
        return type(self)(self._region, self._entries, python, owned=self._owned)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Bootstrap | None = None,
        name: str = "",
        proc_bind: Sequence[Mapping[str, str]] | Literal["auto", "none"] | None = None,
        bootstrap_command: BootstrapCommand | None = None,
        *,
        env: Mapping[str, str | os.PathLike[str] | None] | None = None,
        preload: Sequence[str] = (),
        mpi: bool = False,
    ) -> ProcMesh:
        """Start procs on every host of this view and return their mesh once all of them answer.

        Actors may call this too, on any host; the procs end with the actor that started them. The call blocks: in a
        coroutine write ``await asyncio.to_thread(hosts.spawn_procs, ...)`` so that others can run meanwhile.

        Args:
            per_host: names and sizes of the dimensions of the procs on one host, outermost first, e.g.
                ``{"gpus": 4}``; None starts one proc a host.
            bootstrap: function or coroutine function without parameters, called in every proc before any actor.
            name: prefix of the procs' output lines, to tell several meshes apart.
            proc_bind: ``auto`` or ``none`` instead of config key `procs.bind`; or a list with one mapping for each
                proc of a host, which says where that proc is bound: ``cpus`` or ``physcpubind`` (CPUs),
                ``cpunodebind`` (NUMA nodes whose CPUs to use) and ``membind`` (NUMA nodes to take memory from), each
                as ``"0-3,8"`` or ``"all"``.
            bootstrap_command: for moved programs; *env* overrides its variables, and its program must be the one of
                `default_bootstrap_cmd`: for another interpreter see `with_python_executable`.
            env: variables to set in every proc, strings or paths; None unsets a variable.
            preload: modules to import once per host, before procs are forked: the procs then start in
                milliseconds and share the modules' memory. The modules must not start threads or CUDA.
            mpi: start the procs through a Slurm step, so that MPI's world is this mesh, rank by rank; config key
                `procs.mpi` names the plugin. Starting takes as long as srun does, and no memory is shared.

        Returns:
            The procs, with the dimensions of these hosts followed by those of *per_host*.

        Raises:
            SpawnError: a proc did not start, or its bootstrap failed; all other procs of the mesh were ended.
            TypeError: an argument of another type, or *bootstrap* cannot be pickled. Nothing was started.
            ValueError: a dimension has the name of one of the hosts' dimensions, or a size below 1; there are too
                many procs for one host; *proc_bind* is invalid, or asks for a CPU that a host was not granted; or
                *mpi* with hosts that are not in Slurm's order. Nothing was started.
        """
        inner = _inner(per_host)
        check_text("name", name)
        if bootstrap is not None:
            check_bootstrap(bootstrap)
        variables = {**variables_of(bootstrap_command), **({} if env is None else check_variables("env", env))}
        modules = check_texts("preload", preload, "['numpy', 'torch']")
        check_flag("mpi", mpi)
        door = current_door()
        runtime = door.runtime
        extent = Extent((*self.extent.labels, *inner.labels), (*self.extent.sizes, *inner.sizes))
        entries = self.entries
        bind, bindings = _binding(proc_bind, len(inner), entries)
        plan = ProcPlan(
            hosts=tuple(entry.rank for entry in entries),
            per_host=len(inner),
            name=name,
            environment={variable: value for variable, value in variables.items() if value is not None},
            preload=modules,
            unset=tuple(variable for variable, value in variables.items() if value is None),
            bind=bind,
            bindings=bindings,
            python=self._python,
            mpi=mpi,
        )
        if mpi and list(plan.hosts) != sorted(set(plan.hosts)):
            names = ", ".join(entry.name for entry in entries)
            raise ValueError(f"mpi=True needs hosts in Slurm's order, and these are not: {names}")
        started = block(runtime, door.start_procs(plan, context().actor))
        try:
            for function in (check_world if mpi else None, bootstrap):
                if function is not None:
                    run_bootstrap(runtime, name, started.procs, function)
        except BaseException:
            block(runtime, door.stop_procs(started.mesh, name, "its bootstrap failed"))
            raise
        region = Region.whole(extent)
        return ProcMesh(
            name or f"procs{number_in_program(started.mesh)}", started.mesh, region, started.procs, runtime, owned=True
        )

    def stop(self, reason: str = "") -> Future[None]:
        """End all procs that this program has on the hosts, also those of its actors; the hosts can be used again.

        Args:
            reason: stands in the `ActorDied` of later calls to these procs; may be empty.

        Returns:
            A future that is done when all procs are gone, and fails with `TimeoutError` if a host does not report
            that. The procs end whether or not it is awaited.

        Raises:
            RuntimeError: this is a slice, or the code runs in a proc: hosts belong to the program.
            TypeError: the reason is not a string.
        """
        check_text("reason", reason)
        return self._door("stop").stop_hosts(reason)

    def shutdown(self) -> Future[None]:
        """End all procs and give the hosts back; workers that were started by hand end too.

        Returns:
            A future that is done already: the call blocks until the hosts were given back.

        Raises:
            AllocationError: the allocation is a Slurm job that outlives this program: other programs may use it, and
                'monarch-hpc release' ends it.
            RuntimeError: as for `stop`.
        """
        self._door("shut down").shut_down_hosts()
        return completed(None)

    def _door(self, verb: str) -> ProgramDoor:
        runtime = Runtime.current
        if not self._owned or runtime is None:
            raise RuntimeError(
                f"{self!r} is not owned here: only the program can {verb} hosts, and only those that hosts() gave it; "
                "this is a slice of them, or came in a message"
            )
        return door_of(runtime)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the procs, and also the allocation if it ends with this program."""
        self._door("stop").leave_hosts()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def hosts_of(door: ProgramDoor, ranks: Sequence[int]) -> HostMesh:
    """The hosts with the given *ranks* in the allocation, each once; a single one has no dimension, else ``hosts``.

    Raises:
        ValueError: a rank is not in the allocation; -1 is a program that runs outside it.
    """
    known = door.hosts()
    wanted = list(dict.fromkeys(ranks))
    for rank in wanted:
        if rank not in known:
            machine = f"host {rank}" if rank >= 0 else "this program's machine"
            raise ValueError(f"{machine} is not a host of the allocation")
    entries = {index: known[rank] for index, rank in enumerate(wanted)}
    extent = Extent(("hosts",), (len(wanted),)) if len(wanted) > 1 else Extent((), ())
    return HostMesh(Region.whole(extent), entries, door.runtime.info.python)


def _inner(per_host: object) -> Extent:
    """Check *per_host*, and return the extent of the procs on one host."""
    sizes = {} if per_host is None else check_mapping("per_host", per_host, "{'gpus': 4}")
    extent = Extent.of({label: check_number(f"per_host[{label!r}]", size, least=1) for label, size in sizes.items()})
    if len(extent) > MAX_PROCS_PER_HOST:
        raise ValueError(f"per_host is {extent}, {len(extent)} procs: give at most {MAX_PROCS_PER_HOST} for one host")
    return extent


def _binding(
    proc_bind: Sequence[Mapping[str, str]] | str | None, per_host: int, entries: Sequence[HostEntry]
) -> tuple[str, tuple[Mapping[str, str], ...]]:
    if proc_bind is None:
        return "", ()
    allowed = "'auto', 'none' or a list with one mapping for each proc of a host"
    if isinstance(proc_bind, str):
        if proc_bind not in ("auto", "none"):
            raise ValueError(f"proc_bind is {proc_bind!r}; it is {allowed}")
        return proc_bind, ()
    if isinstance(proc_bind, Mapping) or not isinstance(proc_bind, Iterable):
        raise TypeError(f"proc_bind is {shown(proc_bind)}; it is {allowed}")
    bindings = tuple(
        {
            key: check_text(f"proc_bind[{index}][{key!r}], a list such as '0-3,8' or 'all',", numbers)
            for key, numbers in check_mapping(f"proc_bind[{index}]", binding, "{'cpus': '0-3'}").items()
        }
        for index, binding in enumerate(proc_bind)
    )
    check_bindings(bindings, per_host, {entry.name: entry.cpus for entry in entries})
    return "given", bindings
