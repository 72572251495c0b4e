"""Casts that agents still pass on after the loss of their sender."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from monarch_hpc.actor.casts.receiver import CastLine, CastReceiver
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.core.errors import PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import Peer
from monarch_hpc.wire.casts import Cast, pack_cast, spans_of
from monarch_hpc.wire.frames import Frame, Kind

SENDER = 7
LOST = PeerLost("the program", "the connection ended")
OPEN, BROKEN = SimpleNamespace(error=None), SimpleNamespace(error=LOST)


@pytest.mark.parametrize(
    ("lost", "channels", "error"),
    [
        ([], {}, None),
        ([], {SENDER: OPEN}, None),
        ([SENDER], {}, LOST),
        ([SENDER], {SENDER: BROKEN}, LOST),
        ([SENDER], {SENDER: OPEN}, None),
        ([SENDER + 1], {}, None),
    ],
    ids=["never seen", "here", "gone", "going", "here again", "another is gone"],
)
def test_a_cast_knows_whether_its_sender_is_gone(lost: list[int], channels: dict[int, Any], error: object) -> None:
    delivered: list[CastLine] = []
    connections = Connections(cast(Any, SimpleNamespace(check_own=lambda: None)), lambda link, frame: None)
    node = SimpleNamespace(channels={}, limits=SimpleNamespace(mailbox_bytes=1 << 20))
    connections._node, connections._own = cast(Any, node), cast(Any, SimpleNamespace(rank=0, incarnation=1))
    connections.channels = channels
    for incarnation in lost:
        connections.lost[incarnation] = LOST
    recorder = SimpleNamespace(names=SimpleNamespace(proc=lambda sender, host: 0))
    receiver = CastReceiver(
        connections, cast(Any, recorder), cast(Any, None), lambda line, frame: delivered.append(cast(CastLine, line))
    )
    agent = SimpleNamespace(peer=Peer(Role.AGENT, "h", 2, 0, "", "", ""))
    sent = Cast(Kind.CALL, True, False, SENDER, 1, 0, 0, 1, b"", spans_of({0}), (), 1, b"")
    packed = pack_cast(sent)
    receiver.on_cast(cast(Any, agent), Frame(packed.kind, packed.dest, packed.reply, packed.body, packed.buffers))
    assert [line.error for line in delivered] == [error]
