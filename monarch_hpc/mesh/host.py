"""The mesh of hosts: what a program gets of its allocation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, cast

from monarch_hpc.actor.context import context
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.mpi import check_world
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
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
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.ids import number_in_program
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.bootstrap import Bootstrap, check_bootstrap, run_bootstrap
from monarch_hpc.mesh.bootstrap_command import BootstrapCommand, variables_of
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.program.fleet import ProcPlan
from monarch_hpc.mesh.program.registry import proc_of
from monarch_hpc.mesh.requests import ask_hosts, block, done_future, start_procs, stop_procs
from monarch_hpc.mesh.view import MeshView
from monarch_hpc.wire.messages import MAX_PROCS_PER_HOST, HostEntry

if TYPE_CHECKING:
    from monarch_hpc.mesh.program.controller import Controller

__all__ = ["HostMesh", "hosts", "hosts_of", "this_host", "this_proc"]


class HostMesh(MeshView):
    """Hosts of an allocation; all of them along the dimension ``hosts``.

    It may be sent to actors, which start procs of their own there. Only the program can stop it.

    Args:
        entries: what each host was granted, by base rank.
        python: the interpreter that procs run in; empty for the agents' own.
        owned: it is the program's, and no slice.
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
        """What each host of this view was granted, in order."""
        return [self._entries[rank] for rank in self._region.base_ranks()]

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done: who has a mesh of hosts has reached them."""
        return done_future(_runtime())

    def with_python_executable(self, python_executable: str | os.PathLike[str]) -> Self:
        """The same hosts, whose procs run in another interpreter; `this_host()` in those procs does so too.

        Args:
            python_executable: path of an interpreter on the hosts. It needs this version of monarch-hpc and of Python;
                `spawn_procs` raises if it has not.

        Raises:
            TypeError: neither a string nor a path.
            ValueError: it is empty.
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

        Actors may do so as well as the program, wherever they are; the procs of an actor end with it. It blocks: in a
        coroutine write ``await asyncio.to_thread(hosts.spawn_procs, ...)`` where others are to run meanwhile.

        Args:
            per_host: dimensions of the procs on one host, e.g. ``{"gpus": 4}``; None starts one.
            bootstrap: function or coroutine function that runs in every proc before any actor does.
            name: prefix of their output lines, where one program has several meshes.
            proc_bind: ``auto`` or ``none`` instead of config key `procs.bind`; or for each proc of a host where it is
                bound to: ``cpus`` or ``physcpubind`` (CPUs), ``cpunodebind`` (NUMA nodes whose CPUs are meant) and
                ``membind`` (NUMA nodes that memory comes from), each as ``"0-3,8"`` or ``"all"``.
            bootstrap_command: for moved programs; its variables are set before those of *env*, and its program must be
                that of `default_bootstrap_cmd`: for another interpreter see `with_python_executable`.
            env: variables to set in every proc, strings or paths; None unsets one.
            preload: modules to import once per host, before procs are forked: they then start in
                milliseconds and share the memory. The modules must not start threads or CUDA.
            mpi: start the procs through a step of Slurm, so that the world of MPI is this mesh, rank by rank; config
                key `procs.mpi` names the plugin. It takes as long as srun does, and shares no memory.

        Raises:
            SpawnError: a proc did not start, or its bootstrap failed; those that did are ended.
            TypeError: an argument of another type, or *bootstrap* cannot be pickled. Nothing was started.
            ValueError: a dimension repeats one of the hosts', or has a size below 1; *proc_bind* makes no sense, or
                asks for a CPU that a host was not granted. Nothing was started.
        """
        inner = _inner(per_host)
        check_text("name", name)
        if bootstrap is not None:
            check_bootstrap(bootstrap)
        variables = {**variables_of(bootstrap_command), **({} if env is None else check_variables("env", env))}
        modules = check_texts("preload", preload, "['numpy', 'torch']")
        check_flag("mpi", mpi)
        runtime = _runtime()
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
            raise ValueError(f"mpi=True needs hosts in Slurm's order, and these are turned round: {names}")
        started = block(runtime, start_procs(runtime, plan, context().actor))
        try:
            for function in (check_world if mpi else None, bootstrap):
                if function is not None:
                    run_bootstrap(runtime, name, started.procs, function)
        except BaseException:
            block(runtime, stop_procs(runtime, started.mesh, name, "its bootstrap failed"))
            raise
        region = Region.whole(extent)
        return ProcMesh(
            name or f"procs{number_in_program(started.mesh)}", started.mesh, region, started.procs, runtime, owned=True
        )

    def stop(self, reason: str = "") -> Future[None]:
        """End all procs of this program; the hosts can be used again.

        Nobody has to wait for the future, which is done when all of them are gone.

        Raises:
            RuntimeError: this is a slice, or code of a proc: hosts belong to the program.
            TypeError: the reason is not a string.
        """
        check_text("reason", reason)
        return self._program("stop").stop_all(reason)

    def shutdown(self) -> Future[None]:
        """End all procs and give the hosts back; returns when that is done, with a future that is done, too.

        Workers that were started by hand end, too.

        Raises:
            AllocationError: the allocation is Slurm's: other programs may use it, and 'monarch-hpc release' ends it.
            RuntimeError: as for `stop`.
        """
        program = self._program("shut down")
        if program.outlived:
            raise AllocationError(
                program.name, "it outlives this program; stop() ends your procs, 'monarch-hpc release' all of it"
            )
        for dismiss in program.dismissals:
            dismiss()
        future: Future[None] = Future(program.engine)
        future.set_result(None)
        program.close()
        return future

    def _program(self, verb: str) -> Controller:
        runtime = Runtime.current
        if not self._owned or runtime is None or not runtime.is_program:
            raise RuntimeError(
                f"{self!r} is not owned here: only the program can {verb} hosts, and only those that hosts() gave it; "
                "this is a slice of them, or came in a message"
            )
        return cast("Controller", runtime)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the procs, and the allocation too where it is this program's."""
        program = self._program("stop")
        if program.engine.forked_from:
            return  # they are the parent's
        if program.outlived:
            block(program, self.stop())
        else:
            self.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def hosts() -> HostMesh:
    """The hosts of this program's allocation, also in its procs.

    Under `monarch-hpc run` those of the chosen allocation; in a program started by itself those of the Slurm job that
    it runs in, or else one embedded host on this machine: their agents end with the program.

    Raises:
        AllocationError: the allocation cannot be reached, or has ended; or the program runs in a job whose hosts it
            cannot have, as one of many tasks of `srun`.
        VersionMismatch: it runs another Python or package.
    """
    runtime = _runtime()
    entries = list(ask_hosts(runtime).values())
    region = Region.whole(Extent(("hosts",), (len(entries),)))
    return HostMesh(region, dict(enumerate(entries)), runtime.info.python, owned=runtime.is_program)


def this_host() -> HostMesh:
    """The host that this code runs on, as a mesh of one without dimensions.

    In a program that runs on no host of its allocation, as on a login node, it is the first host of the allocation:
    login nodes are not for work.

    Raises:
        AllocationError: as for `hosts`.
    """
    runtime = _runtime()
    return hosts_of(runtime, [max(runtime.info.host_rank, 0)])


def hosts_of(runtime: Runtime, ranks: Sequence[int]) -> HostMesh:
    """Those hosts, each once: one has no dimension, several are along ``hosts``; -1 is a program that is on none."""
    known = ask_hosts(runtime)
    wanted = list(dict.fromkeys(ranks))
    for rank in wanted:
        if rank not in known:
            who = f"host {rank}" if rank >= 0 else "this program's machine"
            raise ValueError(f"{who} is no host of the allocation")
    entries = {index: known[rank] for index, rank in enumerate(wanted)}
    extent = Extent(("hosts",), (len(wanted),)) if len(wanted) > 1 else Extent((), ())
    return HostMesh(Region.whole(extent), entries, runtime.info.python)


def this_proc() -> ProcMesh:
    """The process that this code runs in, as a mesh of one proc without dimensions.

    In the program it is the program's own process: actors that it spawns there live in it, and end with
    it. Calls within a process go through no socket; arguments and results are copied all the same.

    Raises:
        AllocationError: in the program: its allocation cannot be reached, or has ended.
    """
    return proc_of(_runtime())


def _runtime() -> Runtime:
    if Runtime.current is not None:
        return current_runtime()
    # Here, and not above: procs import `HostMesh` with their users' modules, and never what makes allocations.
    from monarch_hpc.mesh.program.controller import Controller

    return Controller.instance()


def _inner(per_host: object) -> Extent:
    """The dimensions of the procs on one host."""
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
