"""Two processes that share a core: neither keeps it from the other while it waits."""

from __future__ import annotations

import os

import pytest

from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

SHARED_CORE = """
import os, sys, time
from monarch_hpc.core.ids import Role
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support import parties

NUM_BYTES = 64 << 20
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
to_client, from_server = os.pipe()
server = os.fork()
ucx = parties.UCX["ucx-shm"]
if not server:
    party = parties.Party(ucx=ucx)
    party.on_frame_hook = lambda channel, frame: channel.send(Frame(Kind.RESULT, frame.dest))
    os.write(from_server, (party.node.listen(["127.0.0.1"])[0] + "\\n").encode())
    party.until(lambda: bool(party.lost))
    os._exit(0)
client = parties.Party(role=Role.CONTROLLER, ucx=ucx)
with open(to_client) as lines:
    channel = client.node.connect([lines.readline().strip()])
client.until(lambda: bool(channel.why))
assert channel.fabric == "ucx/shm", channel.why
data, other = bytearray(NUM_BYTES), bytearray(NUM_BYTES)

def copy():
    memoryview(other)[:] = data

def send():
    before = len(client.frames)
    channel.send(Frame(Kind.RESULT, 1, 0, b"", [data]))
    client.until(lambda: len(client.frames) > before)

def cpu_s(what):
    begun_s = time.process_time()
    what()
    return time.process_time() - begun_s

copies, sends = zip(*((cpu_s(copy), cpu_s(send)) for _ in range(6)))
print("ratio", min(sends) / min(copies))
client.close()
os.waitpid(server, 0)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen")
def test_a_sender_leaves_the_core_to_the_receiver_that_makes_room_for_it(programs: Programs) -> None:
    """It polled until its time slice was over, for each half MiB that the queue of a process in shared memory holds."""
    ratio = float(programs.run(SHARED_CORE).split()[-1])
    assert ratio < 6, "the CPU time of a frame, in copies of its bytes"
