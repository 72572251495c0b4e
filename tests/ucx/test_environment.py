"""The environment that libucp gets, beside threads that read or change that of the process at any moment."""

from __future__ import annotations

import pytest

from tests.ucx.installed import run_python

pytestmark = pytest.mark.ucx

SEEN = """
import ctypes, os
from monarch_hpc.transport.ucx._ucx import Environment

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p

def seen(*names):
    return [(libc.getenv(name.encode()) or b"").decode() for name in names]

os.environ["THERE"] = "old"
with Environment({"NEW": "1", "THERE": "2"}):
    print(*seen("NEW", "THERE"), os.environ.get("NEW"), os.environ["THERE"])
print(seen("NEW", "THERE", "HOME") == ["", "old", os.environ["HOME"]])

NAMES = "NEW", "THERE", "ADDED", "CHANGED", "REMOVED"
os.environ.update(CHANGED="a", REMOVED="a")
with Environment({"NEW": "1", "THERE": "2"}):
    os.environ["CHANGED"] = "b"
print(seen(*NAMES))
with Environment({"NEW": "1", "THERE": "2"}):
    del os.environ["REMOVED"]
    os.environ["ADDED"] = "b"
print(seen(*NAMES))
with Environment({"NEW": "1", "THERE": "2"}):
    os.environ["THERE"] = os.environ["NEW"] = "theirs"
print(seen(*NAMES))
"""

RACE = """
import ctypes, threading
from monarch_hpc.transport.ucx._ucx import Environment

getenv = ctypes.CDLL(None).getenv
over = threading.Event()

def read():
    while not over.is_set():
        getenv(b"NO_SUCH_VARIABLE")  # without the GIL; walks the whole array

readers = [threading.Thread(target=read) for _ in range(3)]
for reader in readers:
    reader.start()
variables = {f"UCX_TEST_{number}": "x" * 20 for number in range(12)}
for number in range(20_000):
    with Environment(variables):
        pass
over.set()
for reader in readers:
    reader.join()
print("read")
"""

GROWTH = """
import os
from monarch_hpc.core.machine.procfs import read_resident_bytes
from monarch_hpc.transport.ucx._ucx import Environment

variables = {f"UCX_TEST_{number}": "x" * 20 for number in range(12)}
for number in range(100_000):
    with Environment(variables):
        pass
    if number == 1_000:
        before = read_resident_bytes(os.getpid())
print(read_resident_bytes(os.getpid()) - before < 1 << 20)
"""


def test_the_variables_are_there_for_a_time_and_changes_of_others_stay() -> None:
    assert run_python(SEEN).splitlines() == [
        "1 2 None old",
        "True",
        "['', 'old', '', 'b', 'a']",
        "['', 'old', 'b', 'b', '']",
        "['theirs', 'theirs', 'b', 'b', '']",
    ]


def test_a_thread_may_read_the_environment_meanwhile() -> None:
    """As one that loads torch does: setenv frees what it reads."""
    assert run_python(RACE) == "read\n"


def test_a_hundred_thousand_times_take_no_more_memory() -> None:
    assert run_python(GROWTH) == "True\n"
