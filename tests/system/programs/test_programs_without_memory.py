"""A program that has no memory left while answers come: each call is answered or ends in an error, and so does it."""

from __future__ import annotations

import pytest

from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

ACTORS = """
from monarch_hpc import Actor, endpoint

class Giver(Actor):
    @endpoint
    def give(self, num_bytes):
        return b"x" * num_bytes

    @endpoint
    def fail(self, num_bytes):
        raise ValueError("x" * num_bytes)
"""

PROGRAM = """
import collections, random, resource, sys
from monarch_hpc import this_host
from monarch_hpc.core.errors import TransportError
from actors import Giver

def eat(kept):
    for size in (1 << 20, 1 << 16, 1 << 12, 400):
        try:
            while True:
                kept.append(bytes(size))
        except MemoryError:
            pass

def starve(num_free, read):
    # Nothing is left but some small objects, while answers come and one is read.
    kept = []
    try:
        eat(kept)
        del kept[len(kept) - num_free:]
        read()
    except Exception:
        pass
    finally:
        kept.clear()  # an error that was read has the frames of its reader

points = random.Random(int(sys.argv[1]))
procs = this_host().spawn_procs({"gpus": 2})
givers = procs.spawn("givers", Giver)
givers.give.call(1 << 20).get(60)
with open("/proc/self/statm") as statm:
    mapped_bytes = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + (48 << 20), resource.RLIM_INFINITY))
answers = collections.Counter()
for _ in range(4):
    num_bytes = points.choice([0, 100, 9_000, 100_000, 3 << 20])
    try:
        large = givers.slice(gpus=0).give.call_one(150 << 20)
        calls = [givers.give.call(num_bytes), givers.fail.call(min(num_bytes, 9_000)), large]
    except (MemoryError, TransportError):  # at the user's line
        continue
    starve(int(10 ** points.uniform(0, 4)), lambda: calls[points.randrange(3)].get(0.2))
    for call in calls:
        try:
            call.get(60)
        except TimeoutError:
            answers["none"] += 1
        except Exception:
            answers["errors"] += 1
print("without an answer:", answers["none"])
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


@pytest.mark.slow  # answers of 150 MiB
@pytest.mark.parametrize("order", ['["ucx", "tcp"]', '["tcp"]'], ids=["ucx", "tcp"])
def test_all_calls_are_answered_where_no_memory_is_left(programs: Programs, order: str) -> None:
    (programs.folder / "actors.py").write_text(ACTORS)
    output = programs.run(PROGRAM, "1", env={"MONARCH_HPC_FABRIC__ORDER": order})
    assert "without an answer: 0" in output.splitlines()
