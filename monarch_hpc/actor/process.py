"""The main function of a proc, named by the agent's zygote."""

from __future__ import annotations

import _thread
import os
import signal
import sys

from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.runtime import Runtime
from monarch_hpc.agent.start import ProcStart
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.transport.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.ucx.fabric import UcxFabric
from monarch_hpc.transport.ucx.settings import wants_ucx
from monarch_hpc.wire.messages import ProcHello, encode

__all__ = ["main"]


def main(start: ProcStart) -> int:
    """Serve actors until the agent says SIGTERM; return the exit status."""
    info = ProcInfo(
        allocation=start.allocation,
        run=start.run,
        rank=start.rank,
        num_ranks=start.num_ranks,
        host=start.host_name,
        host_rank=start.host_rank,
        local_rank=start.local_rank,
        gpus=tuple(start.gpus),
    )
    # The main thread stays out of the engine, so that an idle actor's thread drives it: see actor.cell.
    stop = _thread.allocate_lock()
    stop.acquire()

    def leave(_signal: int, _frame: object) -> None:
        if stop.locked():
            stop.release()

    signal.signal(signal.SIGTERM, leave)
    engine = Engine(start.spin_s)
    engine.start()
    runtime = Runtime.current = Runtime(engine, info)
    identity = Identity(start.allocation, Role.PROC, start.host_name, new_incarnation())
    fabric = None
    if wants_ucx(start.fabric):
        fabric = UcxFabric(
            engine,
            start.fabric,
            start.ucx,
            login=False,
            interfaces=start.interfaces,
            max_frame_bytes=start.limits.max_frame_bytes,
        )
    node = Node(engine, identity, start.key, runtime, start.limits, forwarders=start.forwarders, fabric=fabric)
    runtime.bind(node)
    hello = ProcHello(start.mesh, start.rank, identity.incarnation, node.listen(start.listen_hosts))
    os.write(start.hello_fd, encode(hello) + b"\n")
    os.close(start.hello_fd)
    stop.acquire()
    node.close("the proc was stopped")
    sys.stdout.flush()
    sys.stderr.flush()
    return 0
