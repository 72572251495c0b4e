"""The effect of the variables on libucp: the sockets that it opens, and the signals and code that it leaves alone."""

from __future__ import annotations

import json

import pytest

from tests.ucx.installed import LIBRARIES, run_python

START = r"""
import ctypes, json, os, re, sys
from pathlib import Path
from monarch_hpc.config.load import load
from monarch_hpc.transport.ucx.library import load_library
from monarch_hpc.transport.ucx.machine import read_machine
from monarch_hpc.transport.ucx.settings import ucx_variables

def handled():
    # Those beyond 31 are the C library's own.
    return int(re.search(r"SigCgt:\s+(\w+)", Path("/proc/self/status").read_text())[1], 16) & (1 << 31) - 1

def sockets():
    # The kernel's columns: number, local address, remote address, state, ..., the ninth is the inode.
    own = {link for entry in Path("/proc/self/fd").iterdir() for link in links(entry)}
    lines = [line.split() for name in ("tcp", "tcp6", "udp", "udp6")
             for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
    return [columns[1] for columns in lines if f"socket:[{columns[9]}]" in own]

def links(entry):
    try:
        return [os.readlink(entry)]
    except FileNotFoundError:  # the folder itself, while it was listed
        return []

def begins(name):
    function = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    return ctypes.string_at(function, 16).hex()

def code():
    return [begins(name) for name in ("mmap", "munmap", "mremap", "madvise", "brk", "sbrk", "shmat", "shmdt")]

config = load(json.loads(sys.argv[2])).config
before, code_before = handled(), code()
variables = ucx_variables(config.fabric, config.ucx, os.environ, read_machine(), login=True, interfaces=["lo"])
os.environ.update({**variables, **json.loads(sys.argv[3])})
library = load_library(sys.argv[1])
assert library.path, library.reason
from monarch_hpc.transport.ucx import _ucx
from monarch_hpc.transport.ucx.front import place
try:
    worker = _ucx.Worker(1 << 20, place)
except _ucx.UcxError as error:
    print(json.dumps({"error": str(error)}))
else:
    print(json.dumps({"sockets": sockets(), "signals": [before, handled()], "code": [code_before, code()]}))
    worker.close()
"""


def start(path: str, flags: dict[str, object], **variables: str) -> dict[str, list[object]]:
    """Start UCX from *path* and return the observed state."""
    seen: dict[str, list[object]] = json.loads(run_python(START, path, json.dumps(flags), json.dumps(variables)))
    return seen


@pytest.mark.parametrize("path", LIBRARIES)
def test_where_strangers_are_it_opens_no_socket(path: str) -> None:
    assert start(path, {})["sockets"] == []


@pytest.mark.parametrize("path", LIBRARIES)
def test_on_a_trusted_network_it_listens_on_the_chosen_interface_and_ports_only(path: str) -> None:
    (name,) = start(path, {"fabric.trusted": True, "ucx.port_range": "31000-31999"})["sockets"]
    address, port = str(name).split(":")
    assert address == "0100007F"  # 127.0.0.1, as the kernel writes it
    assert 31000 <= int(port, 16) <= 31999


@pytest.mark.parametrize("path", LIBRARIES)
def test_signals_stay_with_python(path: str) -> None:
    before, after = start(path, {})["signals"]
    assert before == after


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("path", LIBRARIES)
def test_the_code_of_the_c_library_stays_as_it_is(path: str, trusted: bool) -> None:
    """Other threads execute it while UCX starts."""
    before, after = start(path, {"fabric.trusted": trusted})["code"]
    assert before == after


@pytest.mark.parametrize("path", LIBRARIES)
def test_what_it_has_to_say_does_not_go_to_standard_output(path: str) -> None:
    silent = f"import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 2)\n{START}"
    output = run_python(silent, path, "{}", json.dumps({"UCX_TLS": "nonsense"}))
    assert set(json.loads(output)) == {"error"}
    assert "UCX  ERROR" in run_python(START, path, "{}", json.dumps({"UCX_TLS": "nonsense", "UCX_LOG_LEVEL": "error"}))
