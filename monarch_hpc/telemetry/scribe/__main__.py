"""`python -m monarch_hpc.telemetry.scribe FD`: the helper of a host, which an agent starts and watches.

It ends when the agent has closed its end of the socket pair FD.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys

from monarch_hpc.core.process.dumps import forbid_core_dumps
from monarch_hpc.core.process.parent import continue_at_parents_death
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.scribe.helper import Helper

__all__ = ["main"]

_PR_SET_NAME = 15
_NICE = 19
"""Procs come first."""


def main(arguments: list[str]) -> int:
    """Serve one agent until it closes the socket."""
    # The agent says when it is over: a signal to the whole job must not take the records of its last seconds.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"monarch-scribe", 0, 0, 0)
    continue_at_parents_death()
    os.nice(_NICE)
    os.umask(0o077)
    forbid_core_dumps()
    messages = MessageSocket(socket.socket(fileno=int(arguments[0])))
    helper = Helper(messages)
    poller = select.poll()
    while not messages.ended:
        ends = [one for one in (messages, helper.engine.messages) if one is not None and not one.ended]
        for one in ends:
            poller.register(one, select.POLLIN | (select.POLLOUT if one.num_waiting else 0))
        poller.poll(max(helper.due_s(), 0.0) * 1000)
        for one in ends:
            poller.unregister(one)
        messages.flush()
        for message in messages.receive():
            helper.handle(message)
        helper.work()
    helper.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
