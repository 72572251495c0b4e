"""Finds the head of a later term, for programs and owners of runs whose head is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from monarch_hpc.allocation.attempts import newest_attempt
from monarch_hpc.allocation.ready import Ready, check_allocation
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AllocationError, ConfigError, PeerLost, TransportError
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.node import Node

__all__ = ["Found", "seek_heir"]

_LOOK_S = 0.1
"""Interval of looks for the next head's file."""

_CONNECT_S = 3.0

_FOLLOWED_S = 5.0
"""Time to look on after an answer of the last head. It may have stood still, and wake while the agents elect its
heir: a few turns of candidates, half a second each. If it rules on, it has ended the run of this program."""

Found = Callable[[Ready, FrameChannel], None]
"""Called on the driver with the place of the head of a later term, and a channel to it."""


def seek_heir(
    node: Node,
    directory: Path,
    ready: Ready,
    num_hosts: int,
    why: TransportError,
    wait_s: float,
    found: Found,
    failed: Callable[[], None],
) -> bool:
    """Look for the head that follows the one in *ready*, on another thread; False if there can be none.

    Args:
        num_hosts: number of hosts that the program has known.
        why: the end of the channel to the head.
        wait_s: how long to look: `liveness.fence_s`, in which the agents elect an heir, and `liveness.dead_s`, by which
            they may notice the loss later.
        failed: called on the driver if there is none, or the last head goes on without this process.
    """
    # Of two hosts the other one leads if Slurm says that the head's has left the allocation's own job.
    least = 3 if ready.job_id is None or newest_attempt(directory)[1] == directory else 2
    if num_hosts < least or (isinstance(why, PeerLost) and why.farewell):
        return False
    Thread(lambda: _seek(node, directory, ready, wait_s, found, failed))
    return True


def _seek(node: Node, directory: Path, before: Ready, wait_s: float, found: Found, failed: Callable[[], None]) -> None:
    deadline, pause = Deadline(wait_s), threading.Event()
    answered: Deadline | None = None  # set once the last head has answered again: nobody dials it after that
    while not deadline.passed() and node.belongs(before.allocation) and not (answered and answered.passed()):
        try:
            ready = check_allocation(directory)
            if answered and ready.term <= before.term:
                pause.wait(_LOOK_S)
                continue
            channel = node.connect(ready.addresses, timeout_s=_CONNECT_S, allocation=ready.allocation)
        except PeerLost as error:
            if error.farewell:
                answered = answered or Deadline(_FOLLOWED_S)
            pause.wait(_LOOK_S)
        except (AllocationError, ConfigError, TransportError, OSError):
            break
        else:
            if ready.term > before.term:
                node.engine.call_soon(partial(found, ready, channel))
                return
            node.engine.call_soon(partial(channel.close, "its run has ended with the connection that was lost"))
            answered = Deadline(_FOLLOWED_S)
    node.engine.call_soon(failed)
