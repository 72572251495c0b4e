"""The mesh of hosts: a program's view of its allocation."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Literal, Self

from monarch_hpc.actor.context import context
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import completed
from monarch_hpc.actor.messages.payload import view_of
from monarch_hpc.actor.runtime.mpi import check_world
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.arguments import (
    check_flag,
    check_instance,
    check_number,
    check_path,
    check_seconds,
    check_text,
    check_texts,
    check_variables,
)
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.core.text.units import format_size
from monarch_hpc.mesh.bootstrap import Bootstrap, at_each_point, check_bootstrap, run_bootstrap
from monarch_hpc.mesh.bootstrap_command import BootstrapCommand, PointCommand, variables_of
from monarch_hpc.mesh.door import ProgramDoor, current_door, door_of
from monarch_hpc.mesh.launch import Launch, caller_line
from monarch_hpc.mesh.plan import HostChoice, ProcPlan, plan_binding, plan_inner
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.view import MeshView, ShownRows
from monarch_hpc.supervision.policy import Restart
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["HostMesh", "all_hosts", "hosts_of"]

_groups = itertools.count(1)


class HostMesh(MeshView):
    """Hosts of an allocation; `hosts` returns all of them, along the dimension ``hosts``.

    A mesh of hosts can be passed to actors, which may start procs on it. Only the program can stop it or a slice.

    Args:
        allocation: the allocation of the hosts.
        entries: resources granted on each host, by base rank.
        python: the interpreter that procs run in; empty for the agents' interpreter.
        group: see `HostChoice`.
        owned: whether the program got it, not a proc, nor from a message.
    """

    def __init__(
        self,
        allocation: str,
        region: Region,
        entries: Mapping[int, HostEntry],
        python: str = "",
        group: int = 0,
        *,
        owned: bool = False,
    ) -> None:
        super().__init__(region)
        self._allocation = allocation
        self._entries = entries
        self._python = python
        self._group = group
        self._owned = owned

    def _viewing(self, region: Region) -> Self:
        return type(self)(self._allocation, region, self._entries, self._python, self._group, owned=self._owned)

    def __reduce__(self) -> tuple[object, ...]:
        kept = {rank: self._entries[rank] for rank in self._region.base_ranks()}
        return HostMesh, (self._allocation, self._region, kept, self._python, self._group)

    def apart(self) -> Self:
        """The same hosts, whose `stop` ends only procs that were started through the returned mesh and its views."""
        group = next(_groups)
        return type(self)(self._allocation, self._region, self._entries, self._python, group, owned=self._owned)

    def __repr__(self) -> str:
        return f"<HostMesh {self.extent}: {', '.join(entry.name for entry in self.entries)}>"

    def _shown_rows(self) -> ShownRows:
        def row(base_rank: int) -> list[object]:
            one = self._entries[base_rank]
            return [one.name, len(one.cpus), len(one.gpus), format_size(one.memory_bytes)]

        return ["host", "cores", "GPUs", "memory"], row

    @property
    def allocation(self) -> str:
        """Id of the allocation of the hosts."""
        return self._allocation

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
        return type(self)(self._allocation, self._region, self._entries, python, self._group, owned=self._owned)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Bootstrap | None = None,
        name: str = "",
        proc_bind: Sequence[Mapping[str, str]] | Literal["auto", "none"] | None = None,
        bootstrap_command: BootstrapCommand | PointCommand | None = None,
        *,
        env: Mapping[str, str | os.PathLike[str] | None] | None = None,
        preload: Sequence[str] = (),
        mpi: bool = False,
        restart: Restart | None = None,
    ) -> ProcMesh:
        """Start procs on every host of this view and return their mesh at once, before they run.

        Actors can be spawned and called at once, too: that waits for the procs, and several meshes start side by side.
        If a proc does not start, or *bootstrap* fails, all procs of the mesh are ended, and `ProcMesh.initialized` and
        every use of the mesh and its actors raise the same `SpawnError`, whose note names the line of this call; it is
        logged if nothing uses them. A mesh that is dropped while it starts, before anything was asked of it, is
        stopped.

        Actors may call this too, on any host; the procs end with the actor that started them.

        Args:
            per_host: names and sizes of the dimensions of the procs on one host, outermost first, e.g.
                ``{"gpus": 4}``; None starts one proc a host.
            bootstrap: function or coroutine function without parameters, called in every proc before any actor.
            name: prefix of the procs' output lines, to tell several meshes apart.
            proc_bind: ``auto`` or ``none`` instead of config key `procs.bind`; or a list with one mapping for each
                proc of a host, which says where that proc is bound: ``cpus`` or ``physcpubind`` (CPUs),
                ``cpunodebind`` (NUMA nodes whose CPUs to use) and ``membind`` (NUMA nodes to take memory from), each
                as ``"0-3,8"`` or ``"all"``.
            bootstrap_command: for moved programs; a command, or a function that returns one for the coordinates of a
                proc. *env* overrides its variables, and its program must be the one of `default_bootstrap_cmd`: for
                another interpreter see `with_python_executable`.
            env: variables to set in every proc, strings or paths; None unsets a variable.
            preload: modules to import once per host, before procs are forked: the procs then start in
                milliseconds and share the modules' memory. The modules must not start threads or CUDA.
            mpi: start the procs through a Slurm step, so that MPI's world is this mesh, rank by rank; config key
                `procs.mpi` names the plugin. Starting takes as long as srun does, and no memory is shared.
            restart: when procs that end are started again on their hosts, in their places, with the actors that the
                program has spawned there; None for never. See `ProcMesh.heal` for what they find. Only for procs of the
                program, and not with *mpi*.

        Returns:
            The procs, with the dimensions of these hosts followed by those of *per_host*.

        Raises:
            TypeError: an argument of another type, or *bootstrap* cannot be pickled. Nothing was started.
            RuntimeError: the hosts were shut down, or their allocation has ended; or *restart* in a proc.
            ValueError: a dimension has the name of one of the hosts' dimensions, or a size below 1; there are too
                many procs for one host; *proc_bind* is invalid, or asks for a CPU that a host was not granted; or
                *mpi* with hosts that are not in Slurm's order, or of several groups, or with *restart*. Nothing was
                started.
        """
        inner = plan_inner(per_host, self.extent.names)
        check_text("name", name)
        if bootstrap is not None:
            check_bootstrap(bootstrap)
        variables = {} if env is None else check_variables("env", env)
        modules = check_texts("preload", preload, "['numpy', 'torch']")
        check_flag("mpi", mpi)
        door = current_door()
        _check_restart(restart, door, mpi=mpi)
        runtime = door.runtime
        extent = Extent((*self.extent.names, *inner.names), (*self.extent.shape, *inner.shape))
        if callable(bootstrap_command):
            bootstrap = at_each_point(bootstrap_command, extent, variables, bootstrap)
        else:
            variables = {**variables_of(bootstrap_command), **variables}
        entries = self.entries
        bind, bindings = plan_binding(proc_bind, len(inner), entries)
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
            allocation=self._allocation,
            group=self._group,
            restart=restart,
            bootstrap=bootstrap if door.is_program else None,
            view=view_of(Region.whole(extent)),
        )
        if mpi:
            _check_step(entries)
        number, started = door.start_procs(plan, context().actor)
        placed = [entry.name for entry in entries for _ in range(len(inner))]
        launch = Launch(runtime, name, placed, number, caller_line(), door.stop_procs)
        functions = [function for function in (check_world if mpi else None, bootstrap) if function is not None]
        launch.follow(started, [partial(run_bootstrap, runtime, name, function) for function in functions])
        return ProcMesh(name, number, Region.whole(extent), launch, runtime, owned=True)

    def stop(self, reason: str = "") -> Future[None]:
        """End all procs that this program has on these hosts, also those of its actors; the hosts can be used again.

        Through the hosts of a job, only procs that were started through the same `JobState` are ended.

        Args:
            reason: stands in the `ActorDied` of later calls to these procs; may be empty.

        Returns:
            A future that is done when all procs are gone, and fails with `TimeoutError` if a host does not report
            that. The procs end whether or not it is awaited.

        Raises:
            RuntimeError: the mesh came in a message, or the code runs in a proc: hosts belong to the program.
            TypeError: the reason is not a string.
        """
        check_text("reason", reason)
        return self._door("stop").stop_hosts(self._choice(), reason)

    def grow(self, num_hosts: int | str, *, timeout: float | None = None, slurm_args: Sequence[str] = ()) -> Self:
        """Take further hosts for the allocation, as `monarch-hpc alloc --grow` does: one more Slurm job.

        The call blocks until their agents have joined. `hosts` has them from then on, in this program and in others,
        and `monarch-hpc release` gives all of them back. Their job has a time limit of its own: at its end, as when it
        is cancelled, these hosts are lost, and the allocation goes on.

        Args:
            num_hosts: number of further hosts; or the name of an unused allocation, whose hosts join this one in the
                job that they have, as with ``--from``.
            timeout: seconds that they may take to come, in the queue too; None waits for as long as it takes.
            slurm_args: options of sbatch for their job, such as ``--time=30``; else those of the configuration.

        Returns:
            These hosts and the further ones, along the dimension ``hosts``.

        Raises:
            AllocationError: the hosts did not come in time, and their job was given back; or this machine has no record
                of the allocation, as for one that a batch script made of its own job.
            RuntimeError: as for `stop`; or these hosts have other dimensions than ``hosts``.
            SlurmError: Slurm refuses the job.
            TypeError, ValueError: an argument of another type, or out of range.
        """
        if not isinstance(num_hosts, str):
            check_number("num_hosts", num_hosts, least=1)
        if timeout is not None:
            check_seconds("timeout", timeout)
        options = check_texts("slurm_args", slurm_args, "['--time=30']")
        door = self._door("add")
        if self.extent.names not in ((), ("hosts",)):
            raise RuntimeError(f"{self!r} cannot grow: it has other dimensions than 'hosts'; call hosts().grow()")
        ranks = door.grow_hosts(self._allocation, num_hosts, options, timeout)
        known = door.hosts(self._allocation)
        entries = [*self.entries, *(known[rank] for rank in ranks)]
        region = Region.whole(Extent(("hosts",), (len(entries),)))
        view = type(self)
        return view(self._allocation, region, dict(enumerate(entries)), self._python, self._group, owned=True)

    def shutdown(self) -> Future[None]:
        """End all procs on these hosts and give the hosts back; from then on they start no procs.

        Workers that were started by hand end at once, but the first one of the allocation, through which the others are
        reached. The allocation ends once all its hosts were shut down; other allocations of the program go on.

        Returns:
            A future that is done already: the call blocks until the hosts were given back.

        Raises:
            AllocationError: the allocation is a Slurm job that outlives this program: other programs may use it, and
                'monarch-hpc release' ends it.
            RuntimeError: as for `stop`.
        """
        if Runtime.current is not None or not self._owned:  # else the program has shut everything down
            self._door("shut down").shut_down_hosts(self._choice())
        return completed(None)

    def _door(self, verb: str) -> ProgramDoor:
        runtime = Runtime.current
        if not self._owned or runtime is None:
            raise RuntimeError(
                f"{self!r} is not owned here: only the program can {verb} hosts, and only those that hosts() gave it; "
                "this came in a message"
            )
        return door_of(runtime)

    def _choice(self) -> HostChoice:
        return HostChoice(self._allocation, tuple(entry.rank for entry in self.entries), self._group)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the procs, and give the hosts back if their allocation ends with this program."""
        self._door("stop").leave_hosts(self._choice())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def hosts_of(door: ProgramDoor, allocation: str, ranks: Sequence[int]) -> HostMesh:
    """The hosts with the given *ranks* in an allocation, each once; a single one has no dimension, else ``hosts``.

    Raises:
        ValueError: a rank is not in the allocation; -1 is a program that runs outside it.
    """
    known = door.hosts(allocation) if allocation else {}
    wanted = list(dict.fromkeys(ranks))
    for rank in wanted:
        if rank not in known:
            machine = f"host {rank}" if rank >= 0 else "this program's machine"
            raise ValueError(f"{machine} is not a host of the allocation")
    entries = {index: known[rank] for index, rank in enumerate(wanted)}
    extent = Extent(("hosts",), (len(wanted),)) if len(wanted) > 1 else Extent((), ())
    return HostMesh(allocation, Region.whole(extent), entries, door.runtime.info.python, owned=door.is_program)


def all_hosts(door: ProgramDoor, allocation: str, group: str | None = None) -> HostMesh:
    """All hosts of an allocation but spares, or those of one of its groups, along the dimension ``hosts``.

    Raises:
        ValueError: there is no such group.
    """
    granted = door.hosts(allocation)
    entries = [granted[rank] for rank in door.hosts_in_use(allocation)]
    if group is not None:
        groups = list(dict.fromkeys(entry.group for entry in entries if entry.group))
        entries = [entry for entry in entries if group and entry.group == group]
        if not entries:
            known = f"it has {', '.join(groups)}" if groups else "it has none; see 'monarch-hpc alloc --group'"
            raise ValueError(f"group is {group!r}, which is not a group of the allocation: {known}")
    region = Region.whole(Extent(("hosts",), (len(entries),)))
    return HostMesh(allocation, region, dict(enumerate(entries)), door.runtime.info.python, owned=True)


def _check_step(entries: Sequence[HostEntry]) -> None:
    """Check that one step of Slurm's can have its tasks on these hosts, in their order."""
    names = ", ".join(entry.name for entry in entries)
    ranks = [entry.rank for entry in entries]
    if ranks != sorted(set(ranks)):
        raise ValueError(f"mpi=True needs hosts in Slurm's order, and these are not: {names}")
    jobs = list(dict.fromkeys(entry.job_id for entry in entries))
    if len(jobs) > 1:
        of = ", ".join(map(str, jobs))
        raise ValueError(f"mpi=True needs hosts of one Slurm job, and these ({names}) are of {of}")
    groups = list(dict.fromkeys(entry.group for entry in entries))
    if len(groups) > 1:
        raise ValueError(f"mpi=True needs hosts of one group, and these ({names}) are of {', '.join(groups)}")


def _check_restart(restart: object, door: ProgramDoor, *, mpi: bool) -> None:
    if restart is None:
        return
    check_instance("restart", restart, Restart, "a policy, as Restart('on-failure')")
    if mpi:
        raise ValueError(
            "restart with mpi=True: procs for MPI start together, as the tasks of one step, and end together"
        )
    if not door.is_program:
        raise RuntimeError(
            "restart is for procs of the program, and this is one of its procs: an actor that starts procs learns of "
            "their deaths in __supervise__, and can spawn others"
        )
