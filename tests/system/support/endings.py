"""A program that ends fabrics while they are busy: `python -m tests.system.support.endings FABRIC COUNT [PROGRAMS]`.

A program and not a test: what it could find is that libucp ends the process. With PROGRAMS, so many processes end COUNT
fabrics each and then themselves; it prints how they ended, and fails unless all did in good order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.channel import PeerChannel
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.parties import BLOCKED, UCX, Party

__all__ = ["run_endings"]

_MOST_FRAMES = 2000
"""Senders stop when a party has recorded so many frames, of 300 kB at most: where an end does not come, or comes late
on a busy machine, they would fill its memory."""


def give_up(client: Party, server: Party, channel: FrameChannel) -> None:
    """Take the peer for dead, when UCX has just begun to connect to it."""
    channel.give_up("no heartbeat for 15 s")
    client.until(lambda: bool(client.lost))
    client.close()
    server.close()


def leave_in_full_flow(client: Party, server: Party, channel: FrameChannel) -> None:
    """End while small and large messages are sent both ways."""
    ways_of_flow = ((channel, server), (server.opened[0], client))
    senders = [pour(end, size, receiver) for end, receiver in ways_of_flow for size in (100, 300_000)]
    client.until(lambda: len(client.frames) > 10)
    client.close()
    server.close()
    for sender in senders:
        sender.join()


def be_left_in_full_flow(client: Party, server: Party, channel: FrameChannel) -> None:
    """End when the peer has, while small and large messages are sent to it."""
    senders = [pour(channel, size, server) for size in (100, 300_000)]
    server.until(lambda: len(server.frames) > 10)
    server.close()
    client.close()
    for sender in senders:
        sender.join()


def send_late(client: Party, server: Party, channel: FrameChannel) -> None:
    """Send on a lane whose fabric has ended since the channel was found to be open."""
    assert isinstance(channel, PeerChannel)
    lane = channel._lane
    assert lane is not None
    client.close()
    server.close()
    for size in (100, 300_000):
        try:
            lane.send(Frame(Kind.RESULT, 0, 0, b"", [bytes(size)]))
        except TransportError:
            continue
        raise AssertionError(f"a closed lane took {size} bytes")


def pour(channel: FrameChannel, num_bytes: int, receiver: Party) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(TransportError):
            while len(receiver.frames) < _MOST_FRAMES:
                channel.send(Frame(Kind.RESULT, 0, 0, b"", [bytes(num_bytes)]))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


Way = Callable[[Party, Party, FrameChannel], None]


def ways(fabric: str) -> tuple[Way, ...]:
    """The endings that a fabric can have; the relay of these tests goes through the server, which so ends last."""
    always = (give_up, leave_in_full_flow)
    if fabric == "relay":
        return always
    return (*always, be_left_in_full_flow, send_late) if fabric in UCX else (*always, be_left_in_full_flow)


def end(fabric: str, way: Way) -> None:
    """Join two parties, and end both."""
    server = Party(ucx=UCX.get(fabric, ""))
    client = Party(role=Role.CONTROLLER, ucx=UCX.get(fabric, ""), around=server if fabric == "relay" else None)
    addresses = server.node.listen(["127.0.0.1"])
    if fabric == "relay":
        addresses = [address.replace("127.0.0.1", BLOCKED) for address in addresses]
    channel = client.node.connect(addresses)
    server.until(lambda: bool(server.opened))
    if fabric in UCX:
        client.until(lambda: channel.fabric == fabric.replace("-", "/"))
    way(client, server, channel)


def run_endings(libucp: str, fabric: str, count: int) -> list[str]:
    """Run *count* endings in a process, and return the lines that it printed, both streams."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.support.endings", fabric, str(count)],
        env={**os.environ, "MONARCH_LIBUCP": libucp},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    print(done.stdout)  # shown whole if the test fails
    return done.stdout.splitlines() if not done.returncode else [f"exit status {done.returncode}"]


def end_all(fabric: str, endings: Iterable[Way]) -> None:
    """Do all *endings*, and say what is left of UCX."""
    for way in endings:
        end(fabric, way)
    if fabric in UCX:
        from monarch_hpc.transport.ucx import _ucx

        print(_ucx.num_abandoned(), "abandoned")
    print("ended in good order")


def run_programs(fabric: str, count: int, programs: int) -> Counter[str] | None:
    """Fork *programs* processes, one after the other, and return how they ended; None in each of them, when it is done.

    They are forked before UCX is loaded, and leave through the end of the interpreter.
    """
    found: Counter[str] = Counter()
    endings = itertools.cycle(ways(fabric))
    for _ in range(programs):
        own = [next(endings) for _ in range(count)]
        pid = os.fork()
        if not pid:
            end_all(fabric, own)
            return None
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        found[f"signal {-code}" if code < 0 else f"exit status {code}"] += 1
    return found


if __name__ == "__main__":
    name, number, *more = sys.argv[1:]
    if more:
        outcome = run_programs(name, int(number), int(*more))
        if outcome is not None:
            print(name, *(f"{times} x {how}" for how, times in outcome.most_common()), sep=", ")
            sys.exit(set(outcome) != {"exit status 0"})
    else:
        end_all(name, itertools.islice(itertools.cycle(ways(name)), int(number)))
