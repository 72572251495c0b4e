"""Control messages survive encoding, and nothing else is decoded as one."""

from __future__ import annotations

import json

import pytest

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.messages import (
    HostEntry,
    Join,
    Output,
    Roster,
    RunLinks,
    ShutDownDone,
    Status,
    StopProcs,
    decode,
    encode,
)

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
        Join(_HOST, ""),
        Roster([_HOST, _HOST]),
        Output("r1", 1, 2, 0, "out", ["a\x1b[31m", "é"], 3),
        StopProcs("r1", 5, [0, 3], 2.5),
        ShutDownDone({"n1": 0}),
        RunLinks("r1", [{"host": 0, "fabric": "tcp", "why": "", "procs": 2}]),
        Status(),
    ],
)
def test_messages_read_back_as_written(message: object) -> None:
    assert decode(encode(message)) == message  # type: ignore[arg-type]


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
        (b'{"op":"Join","host":{"rank":0},"problem":""}', "Join.host"),
    ],
)
def test_what_is_no_message_is_refused_in_words(body: bytes, problem: str) -> None:
    with pytest.raises(FrameError) as caught:
        decode(body)
    assert problem in str(caught.value)
