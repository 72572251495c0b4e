"""Control messages survive encoding, and nothing else is decoded as one."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire import control
from monarch_hpc.wire.control.allocation import HostEntry, Roster, ShutDownDone
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.output import Output
from monarch_hpc.wire.control.procs import ProcReport, StopProcs
from monarch_hpc.wire.control.table import MESSAGES, decode
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.wire.samples import sample_messages

_HOST = HostEntry(
    rank=0,
    name="n1",
    addresses=["tcp://10.0.0.1:4000"],
    pid=7,
    python="3.11.2",
    package="0.1.0",
    cpus=[0, 1],
    gpus=["0"],
    memory_bytes=2**40,
    interfaces={"eth0": "10.0.0.1"},
)


@pytest.mark.parametrize(
    "message",
    [
        *sample_messages(),
        Roster([_HOST, _HOST], 2),
        Output(ProcKey("r1", 1, 2, 0), "out", ["a\x1b[31m", "é"], 3),
        ShutDownDone({}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_read_back_as_written(message: Message) -> None:
    assert decode(encode(message)) == message


def test_a_new_interpreter_decodes_every_message() -> None:
    program = (
        "import sys; from monarch_hpc.wire.control.table import decode; [decode(line) for line in sys.stdin.buffer]"
    )
    lines = b"\n".join(encode(message) for message in sample_messages())
    subprocess.run([sys.executable, "-P", "-c", program], input=lines, check=True, timeout=60)


def test_every_message_of_the_package_is_in_the_table() -> None:
    modules = [
        importlib.import_module(found.name) for found in pkgutil.iter_modules(control.__path__, f"{control.__name__}.")
    ]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    assert {cls for cls in classes if issubclass(cls, Message)} == {Message, ProcReport, *MESSAGES.values()}


def test_whole_numbers_pass_for_seconds() -> None:
    document = json.loads(encode(StopProcs("r1", 5, [0], 2.5)))
    document["grace_s"] = 2
    read = decode(json.dumps(document).encode())
    assert isinstance(read, StopProcs)
    assert read.grace_s == 2.0


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\xff", "not JSON"),
        (b"[]", "not an object"),
        (b'{"op":"Nothing"}', "unknown control message 'Nothing'"),
        (b'{"op":["Status"]}', "unknown control message"),
        (b'{"op":"Status","extra":1}', "extra"),
        (b'{"op":"StopProcs","run":"r","mesh":1,"hosts":[0]}', "grace_s"),
        (b'{"op":"StopProcs","run":"r","mesh":true,"hosts":[0],"grace_s":1}', "StopProcs.mesh"),
        (b'{"op":"StopProcs","run":"r","mesh":1,"hosts":["0"],"grace_s":1}', "StopProcs.hosts"),
        (b'{"op":"Join","host":{"rank":0},"problem":"","num_hosts":1}', "Join.host"),
    ],
)
def test_what_is_no_message_is_refused_in_words(body: bytes, problem: str) -> None:
    with pytest.raises(FrameError) as caught:
        decode(body)
    assert problem in str(caught.value)
