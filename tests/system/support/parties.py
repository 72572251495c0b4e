"""Parties to channels: an engine and a node each, which record their events."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from monarch_hpc.config.schema import FabricConfig, InterfacesConfig, TransportConfig, UcxConfig
from monarch_hpc.core.errors import (
    TransportError,
)
from monarch_hpc.core.ids import Identity, Role, new_allocation_id, new_incarnation
from monarch_hpc.testing.conformance import PATIENCE_S
from monarch_hpc.transport.api import Fabric, FrameChannel
from monarch_hpc.transport.connect.listen import Forwards
from monarch_hpc.transport.connect.relay import Relay
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.ucx.fabric import UcxFabric
from monarch_hpc.transport.ucx.machine import read_machine
from monarch_hpc.wire.frames import Frame

__all__ = [
    "ALLOCATION",
    "BLOCKED",
    "KEY",
    "LIMITS",
    "PATIENCE_S",
    "RDMA",
    "UCX",
    "Around",
    "Party",
    "hasty",
    "make_fabric",
    "parties",
]

ALLOCATION = new_allocation_id()
KEY = os.urandom(32)
LIMITS = TransportConfig(
    handshake_s=5.0,
    max_half_open=8,
    max_frame_bytes=2**30,
    list_pieces=1024,
    send_queue_bytes=2**20,
    mailbox_bytes=2**22,
    cast_direct=16,
    cast_fanout=16,
    cast_shared_bytes=1 << 20,
    connect_s=20.0,
    around_after_s=0.05,
    relay_s=5.0,
    cut_s=3.0,
)

BLOCKED = "192.0.2.1"
"""An address without a host, reserved for documentation. The relay of these tests maps it to loopback."""


class Around:
    """A relay between two engines of this process, over pipes as srun would provide."""

    def __init__(self, near: Engine, far: Engine) -> None:
        to_far, to_near = os.pipe(), os.pipe()
        self._near = near
        self._ends: list[Relay] = []
        self._over = [Flag(near), Flag(near)]
        made = Flag(near)

        def make_far() -> None:
            os.write(to_near[1], b"Loading modules ...\r\n")  # what a site's profile may print first
            Relay(far, to_far[0], to_near[1], far=True, over=lambda _reason: self._over[0].set())
            near.call_soon(make_near)

        def make_near() -> None:
            relay = Relay(near, to_near[0], to_far[1], far=False, over=lambda _reason: self._over[1].set())
            self._ends.append(relay)
            made.set()

        far.call_soon(make_far)
        assert made.wait(PATIENCE_S)

    def open(self, address: str, failed: Callable[[str], None]) -> socket.socket:
        return self._ends[0].open(address.replace(BLOCKED, "127.0.0.1"), failed)

    def close(self) -> None:
        self._near.call_soon(lambda: self._ends[0].close("the test ended"))
        assert all(over.wait(PATIENCE_S) for over in self._over)


UCX = {"ucx-shm": "posix,cma,self", "ucx-tcp": "tcp,self", "ucx-rdma": "ib,self"}
"""UCX's transports for each tested fabric."""

RDMA = ["ucx-rdma"] if read_machine().rdma else []
"""The tested fabric over RDMA, where there is a device for it; `make rdma-lab` emulates one."""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short limits for parties that are made from here on: for tests that wait until they expire."""
    monkeypatch.setattr(sys.modules[__name__], "LIMITS", replace(LIMITS, handshake_s=0.5, connect_s=2.0))


def make_fabric(engine: Engine, transports: str) -> UcxFabric:
    """Make a UCX fabric with these transports only."""
    trusted = "tcp" in transports
    return UcxFabric(
        engine,
        FabricConfig(
            order=("ucx", "tcp"),
            trusted=trusted,
            interfaces=InterfacesConfig((), ()),
            port_range="",
            dial_back=False,
            spin_us=0,
        ),
        UcxConfig(
            library=None, transports=transports, devices="", port_range="", tcp_segment_bytes=2**19, keepalive_s=1.0
        ),
        login=False,
        interfaces=["lo"],
        max_frame_bytes=LIMITS.max_frame_bytes,
        segments=os.environ.get("UCX_POSIX_DIR", ""),
    )


class Party:
    """The engine and node of one process, and a record of their events."""

    def __init__(
        self,
        role: Role = Role.PROC,
        key: bytes = KEY,
        around: Party | None = None,
        ucx: str = "",
        fabric: Callable[[Engine], Fabric] | None = None,
        spin_s: float = 0.0,
        forwarders: Sequence[str] = (),
        forwards: Forwards = lambda _incarnation: None,
        cma: bool = False,
    ) -> None:
        self.engine = Engine(spin_s)
        self.engine.start()
        self.identity = Identity(ALLOCATION, role, "here", new_incarnation())
        relay = None if around is None else Around(self.engine, around.engine)
        self.node = Node(
            self.engine,
            self.identity,
            key,
            self,
            LIMITS,
            relay,
            fabric=fabric(self.engine) if fabric is not None else make_fabric(self.engine, ucx) if ucx else None,
            forwarders=forwarders,
            forwards=forwards,
        )
        self.node.own_memory.cross_memory.use(("cma", "tcp") if cma else ("tcp",))
        self.opened: list[FrameChannel] = []
        self.frames: list[Frame] = []
        self.lost: list[TransportError] = []
        self.on_frame_hook: Callable[[FrameChannel, Frame], object] = lambda _channel, _frame: None

    def on_channel(self, channel: FrameChannel) -> None:
        self.opened.append(channel)
        self.engine.wake_waiters()

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        self.frames.append(frame)
        self.on_frame_hook(channel, frame)
        self.engine.wake_waiters()

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        self.lost.append(error)
        self.engine.wake_waiters()

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.engine.wait(condition, PATIENCE_S), f"{len(self.frames)} frames, lost: {self.lost}"

    def close(self) -> None:
        self.node.close("the test ended")
        self.engine.close()


@pytest.fixture
def parties() -> Iterator[Callable[..., Party]]:
    made: list[Party] = []

    def make(**options: object) -> Party:
        made.append(Party(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for party in reversed(made):
        party.close()


def join(parties: Callable[..., Party], fabric: str) -> tuple[Party, Party, FrameChannel]:
    """A party with memory, one without, and the latter's channel over *fabric*, which may be ``cma``."""
    ucx, cma = UCX.get(fabric, ""), fabric == "cma"
    owner = parties(ucx=ucx, cma=cma)
    addresses = owner.node.listen(["127.0.0.1"])
    if fabric == "relay":
        asker = parties(role=Role.CONTROLLER, around=owner)
        return owner, asker, asker.node.connect([address.replace("127.0.0.1", BLOCKED) for address in addresses])
    asker = parties(role=Role.CONTROLLER, ucx=ucx, cma=cma)
    channel = asker.node.connect(addresses)
    asker.until(lambda: not ucx or bool(channel.why))
    return owner, asker, channel
