"""Starts procs: chooses their bindings, creates their pipes, and has the zygote or an MPI step fork them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from monarch_hpc.agent.output.proc_output import Outlet, ProcOutput
from monarch_hpc.agent.proc_settings import ProcSettings
from monarch_hpc.agent.procs.mpi_step import MpiSteps
from monarch_hpc.agent.procs.proc import Proc
from monarch_hpc.agent.procs.proc_table import ProcTable
from monarch_hpc.agent.procs.zygote_pool import ForkProblem, Spawned, ZygotePool
from monarch_hpc.agent.resources.binding import (
    Binding,
    check_bindings,
    given_bindings,
    read_topology,
    shares,
    threads_of_each,
)
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.gpus import own_block, visible_gpus
from monarch_hpc.core.storage.shortage import shortage_note
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import SpawnFailed, SpawnProcs
from monarch_hpc.wire.start import ProcOrder, ProcStart

__all__ = ["ProcSpawner"]

_log = Logger(__name__)


class ProcSpawner:
    """Starts the procs of a host. All methods must be called on the engine's driver.

    Args:
        outlet: receives the procs' output.
        send: sends a message to the head.
        table: takes the procs.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ProcSettings,
        zygotes: ZygotePool,
        steps: MpiSteps,
        outlet: Outlet,
        send: Callable[[Message], None],
        table: ProcTable,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._zygotes = zygotes
        self._steps = steps
        self._outlet = outlet
        self._send = send
        self._table = table
        self._topology = functools.cache(read_topology)  # hundreds of files on a large machine

    def start(self, order: SpawnProcs, ranks: list[tuple[int, int]]) -> None:
        """Start procs of *order*, given as pairs of rank in the mesh and rank on the host.

        A failure after the preparation ends the procs, and is reported for each.

        Raises:
            ValueError: a binding is not possible here; nothing was started.
        """
        bindings, num_threads = self._bindings(order)
        starts = [
            self._proc_start(order, rank, local_rank, bindings[local_rank], num_threads) for rank, local_rank in ranks
        ]
        procs: list[Proc] = []
        proc_fds: list[int] = []
        try:
            # All are registered before the fork is requested, so that every forked process has an owner.
            for start in starts:
                self._prepare(order, start, procs, proc_fds)
            self._order_forks(order, starts, proc_fds, procs)
        except Exception as error:  # noqa: BLE001 a callback's edge: the requester must get an answer
            cause = _cause_of(error)
            for proc in procs:
                self._table.end(proc, cause)
            for start in starts[len(procs) :]:
                self._send(SpawnFailed(start.proc, cause, []))
        finally:
            for fd in proc_fds:
                os.close(fd)

    def _prepare(self, order: SpawnProcs, start: ProcStart, procs: list[Proc], proc_fds: list[int]) -> None:
        """Create and register a `Proc`; append it to *procs*, and the descriptors that it inherits to *proc_fds*.

        Raises:
            OSError: out of descriptors or memory; nothing was created.
        """
        own_fds: list[int] = []
        num_proc_fds = len(proc_fds)
        try:
            for _ in range(3):
                read, write = os.pipe()
                own_fds.append(read)
                proc_fds.append(write)
            out, err, hello = own_fds
            own_fds.append(make_memory(f"proc {start.rank}"))
            proc_fds.append(os.dup(own_fds[-1]))
            os.set_blocking(hello, False)
            path = self._outlet.files.path(start.run, start.rank, start.host_name)
            output = ProcOutput(self._engine, start.proc, {"out": out, "err": err}, path, self._outlet)
        except OSError:
            for fd in (*own_fds, *proc_fds[num_proc_fds:]):
                os.close(fd)
            del proc_fds[num_proc_fds:]
            raise
        own_gpus = own_block(self._usable_gpus(), start.local_rank, order.per_host)
        proc = Proc(start, output, hello, own_fds[-1], in_step=bool(order.mpi), own_gpus=own_gpus)
        procs.append(proc)
        self._table.add(proc, order.deadline_s)

    def _order_forks(self, order: SpawnProcs, starts: list[ProcStart], fds: list[int], procs: list[Proc]) -> None:
        """Request the forks from the zygote, or from the tasks of a step."""
        request = ProcOrder(
            starts=starts,
            environment=order.environment,
            sys_path=order.sys_path,
            cwd=order.cwd,
            umask=order.umask,
            gpu_variable=self._settings.grant.gpu_variable,
            unset=order.unset,
            in_step=bool(order.mpi),
        )
        forked = partial(self._forked, procs)
        if order.mpi:
            self._steps.spawn(order, request, fds, forked)
        else:
            table = self._table
            self._zygotes.spawn(
                order.python, order.preload, request, fds, forked, lambda: any(proc in table for proc in procs)
            )

    def _bindings(self, order: SpawnProcs) -> tuple[list[Binding], int]:
        """The binding of each proc of this host, and the number of OpenMP threads in each (0: not set)."""
        grant = self._settings.grant
        cpus = grant.cpus
        match order.bind:
            case "given":
                check_bindings(order.bindings, order.per_host, {self._settings.name: cpus})
                return given_bindings(order.bindings, cpus, self._topology()), 0
            case "auto":
                num_threads = threads_of_each(len(cpus), order.per_host, grant.num_sharing)
                if order.per_host == 1 or not grant.is_own:
                    return [Binding()] * order.per_host, num_threads
                gpus = [self._gpus(order, local_rank) for local_rank in range(order.per_host)]
                return [Binding(share) for share in shares(cpus, gpus, self._topology())], num_threads
            case _:
                return [Binding()] * order.per_host, 0

    def _usable_gpus(self) -> list[str]:
        """The granted GPUs without those that have failed.

        Raises:
            ValueError: all have.
        """
        granted, failed = self._settings.grant.gpus, self._table.failed_gpus
        usable = [gpu for gpu in granted if gpu not in failed]
        if granted and not usable:
            raise ValueError(f"all GPUs of this host have failed: {failed[granted[0]]}")
        return usable

    def _gpus(self, order: SpawnProcs, local_rank: int) -> list[str]:
        return visible_gpus(self._usable_gpus(), local_rank, order.per_host, order.gpu_visible)

    def _proc_start(
        self, order: SpawnProcs, rank: int, local_rank: int, binding: Binding, num_threads: int
    ) -> ProcStart:
        settings = self._settings
        # A spinning thread without a core of its own only takes time from the thread it waits for.
        has_spare_core = len(self._table) + order.per_host < len(settings.grant.cpus)
        return ProcStart(
            allocation=settings.allocation,
            run=order.run,
            mesh=order.mesh,
            rank=rank,
            num_ranks=order.num_ranks,
            local_rank=local_rank,
            per_host=order.per_host,
            host_rank=settings.rank,
            host_name=settings.name,
            key=settings.key,
            listen_hosts=settings.listen_hosts,
            gpus=self._gpus(order, local_rank),
            hello_fd=-1,
            record_fd=-1,
            spin_s=settings.fabric.spin_us / 1e6 if has_spare_core else 0.0,
            agent=settings.addresses,
            forwarders=settings.forwarders,
            interfaces=list(settings.grant.interfaces),
            segments=settings.segments,
            procs=settings.procs,
            limits=settings.limits,
            fabric=settings.fabric,
            rdma=settings.rdma,
            ucx=settings.ucx,
            logs=settings.logs,
            cpus=binding.cpus,
            memory_nodes=binding.memory_nodes,
            num_threads=num_threads,
            slurm=asdict(settings.slurm),
            python=order.python,
            restarts=order.restarts,
        )

    def _forked(self, procs: list[Proc], outcome: Spawned) -> None:
        if isinstance(outcome, ForkProblem):
            for proc in procs:
                self._table.end(proc, outcome.cause, outcome.last_lines)
            return
        for proc, pid in zip(procs, outcome, strict=True):
            proc.pid = pid
        for proc in procs:
            self._table.on_forked(proc)


def _cause_of(error: Exception) -> str:
    """Return why procs were not started; an unexpected error is also logged."""
    match error:
        case OSError():
            note = shortage_note(error)
            return f"{error.strerror or error}{f'; {note}' if note else ''}"
        case ValueError():
            return str(error)
    _log.exception("procs could not be started")
    return f"their agent failed: {type(error).__name__}: {error}; its log has more"
