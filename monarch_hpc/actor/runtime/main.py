"""The life of a proc, from its start by the agent's zygote to SIGTERM."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from monarch_hpc.actor.context import ProcInfo, outside
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.death_causes import STOPPED
from monarch_hpc.actor.runtime.log_records import listen
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.ids import Identity, Role, SlurmIds, new_incarnation
from monarch_hpc.core.process.breakdown import break_down
from monarch_hpc.core.process.fork import watch_forks
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.faults import log_fault
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.ucx.fabric import UcxFabric
from monarch_hpc.transport.ucx.settings import wants_ucx
from monarch_hpc.wire.control.message import encode
from monarch_hpc.wire.control.procs import ProcHello
from monarch_hpc.wire.start import STOP_ORDERED, TERMINATED, ProcStart

__all__ = ["serve"]


_AGENT_S = 1.0
"""Time between SIGTERM to a proc and to its agent, when Slurm signals both; a proc that gets it alone ends then."""

_LOOK_MS = 20


class _Term:
    """Catches SIGTERM, which ends a proc cleanly; in forked children the signal has its default action.

    Args:
        agents: the file that the agent makes when it gets SIGTERM itself; None where no agent's signal matters. Then
            Slurm has signalled all processes of the job, and only the agent's own order ends the proc.
    """

    def __init__(self, agents: Path | None) -> None:
        self._came_s: float | None = None
        self._ordered = agents is None
        self._agents = agents
        signal.signal(signal.SIGTERM, self._take)
        signal.signal(STOP_ORDERED, self._take_order)
        watch_forks(self)
        # Blocked in the forking thread: Python drops a signal that reaches a child before its after-fork hooks run.
        hold, let_go = (
            partial(signal.pthread_sigmask, how, {signal.SIGTERM}) for how in (signal.SIG_BLOCK, signal.SIG_UNBLOCK)
        )
        os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=let_go)

    def wait(self, signals_fd: int) -> None:
        """Wait until the proc has to end."""
        woken = select.poll()
        woken.register(signals_fd, select.POLLIN)
        while self._came_s is None or not self._ordered:
            if woken.poll(None if self._came_s is None else _LOOK_MS):
                os.read(signals_fd, 64)
            if self._came_s is not None and not self._ordered and self._agents is not None:
                if self._agents.exists():
                    self._came_s = None
                elif time.monotonic() - self._came_s > _AGENT_S:
                    return

    def _take(self, _signal: int, _frame: object) -> None:
        self._came_s = time.monotonic()

    def _take_order(self, _signal: int, _frame: object) -> None:
        self._ordered = True

    def forked(self, parent: int) -> None:
        """In a forked child: restore the default action, and detach from the wake-up pipe of *parent*."""
        if signal.getsignal(signal.SIGTERM) == self._take:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(STOP_ORDERED) == self._take_order:
            signal.signal(STOP_ORDERED, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


def serve(start: ProcStart, prepare: Callable[[Runtime], None]) -> int:
    """Serve actors until SIGTERM; return minus its number: the process ends by it, once it has cleaned up.

    Args:
        start: the proc's place, and the settings from its agent.
        prepare: completes the runtime before the first frame arrives.
    """
    info = ProcInfo(
        allocation=start.allocation,
        run=start.run,
        rank=start.rank,
        num_ranks=start.num_ranks,
        host=start.host_name,
        host_rank=start.host_rank,
        local_rank=start.local_rank,
        gpus=tuple(start.gpus),
        slurm_job_id=start.slurm.get("job_id", ""),
        slurm=SlurmIds(**start.slurm),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        python=start.python,
    )
    outside(info)
    # The main thread stays out of the engine, so that an idle actor's thread drives it: see actor.cell. It waits on a
    # pipe, not on a lock: a signal that another thread receives does not wake a thread that waits for a lock.
    signals_fd, wakeup_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(wakeup_fd, False)
    term = _Term(Path(start.segments, TERMINATED) if info.slurm_job_id and start.segments else None)
    signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    listen(start.logs.level)
    engine = Engine(start.spin_s)
    engine.on_fault = partial(_on_fault, engine)
    engine.start()
    identity = Identity(start.allocation, Role.PROC, start.host_name, new_incarnation())
    recorder = Recorder(start.record_fd, identity.incarnation)
    runtime = Runtime.current = Runtime(engine, info, start.procs, recorder)
    prepare(runtime)
    fabric = None
    if wants_ucx(start.fabric):
        fabric = UcxFabric(
            engine,
            start.fabric,
            start.ucx,
            login=False,
            interfaces=start.interfaces,
            max_frame_bytes=start.limits.max_frame_bytes,
            segments=start.segments,
        )
    node = Node(
        engine,
        identity,
        start.key,
        runtime,
        start.limits,
        forwarders=start.forwarders,
        fabric=fabric,
        refused=recorder.refused,
    )
    node.own_memory.cross_memory.use(start.fabric.order)
    node.own_memory.devices.use(start.rdma.staged)
    addresses = node.listen(start.listen_hosts, port_range=start.fabric.port_range)
    own = ProcRef(
        mesh=start.mesh,
        rank=start.rank,
        host=start.host_name,
        host_rank=start.host_rank,
        pid=os.getpid(),
        incarnation=identity.incarnation,
        addresses=tuple(addresses),
        restarts=start.restarts,
        allocation=start.allocation,
    )
    runtime.bind(node, own)
    runtime.casts.route_through(start.agent, start.allocation, start.run)
    hello = ProcHello(start.mesh, start.rank, identity.incarnation, addresses)
    os.write(start.hello_fd, encode(hello) + b"\n")
    os.close(start.hello_fd)
    term.wait(signals_fd)
    engine.on_fault = log_fault  # the proc ends anyway, by the signal
    runtime.replier.leaves_deaths = True
    runtime.shut_down()
    node.close(STOPPED)
    sys.stdout.flush()
    sys.stderr.flush()
    return -signal.SIGTERM


def _on_fault(engine: Engine, what: str, error: BaseException) -> None:
    """End the proc: a message may be lost, and its sender would wait for ever. The end answers all callers."""
    try:
        # These concern a channel or a file, and fail its waiters.
        if engine.failure is None and isinstance(error, (MonarchError, OSError)):
            log_fault(what, error)
            return
    except BaseException:  # noqa: BLE001 user code has replaced builtins
        pass
    break_down(what, error)
