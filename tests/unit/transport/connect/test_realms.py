"""Allocations that a process joins, links to, and leaves."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from monarch_hpc.config.load import load_config
from monarch_hpc.core.ids import Identity, Role, new_allocation_id
from monarch_hpc.transport.connect.realms import Realms
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.secure.fence import Fence
from monarch_hpc.transport.secure.link import LinkKey

OWN, OTHER = new_allocation_id(), new_allocation_id()
KEY = os.urandom(32)


class Relay:
    """A relay that counts how often it was closed."""

    num_closed = 0

    def open(self, address: str, failed: Callable[[str], None]) -> socket.socket:
        raise AssertionError(f"{address} was dialled")

    def close(self) -> None:
        self.num_closed += 1


@pytest.fixture
def realms() -> Iterator[Realms]:
    limits = load_config({"HOME": "/home/alice"}, Path("/"), "here", None, {}).config.transport
    engine = Engine()
    engine.start()
    identity = Identity(OWN, Role.CONTROLLER, "here", 7)

    def adopt(*_: object) -> NoReturn:
        raise AssertionError("nobody is dialled")

    yield Realms(engine, limits, identity, Fence(Role.CONTROLLER), lambda _incarnation: None, adopt)
    engine.close()


def join(realms: Realms, allocation: str, relay: Relay | None = None) -> None:
    realms.join(allocation, KEY, name="", relay=relay, forwarders=(), with_fabric=False)


def test_the_own_allocation_needs_no_name(realms: Realms) -> None:
    assert realms.get("") is None
    join(realms, OWN)
    join(realms, OTHER)
    assert realms.get("") is realms.own is realms.joined[OWN]
    assert realms.get(OTHER) is not realms.own


def test_an_epoch_holds_in_its_allocation_only(realms: Realms) -> None:
    join(realms, OWN)
    join(realms, OTHER)
    realms.set_epoch(3, OTHER)
    assert [realms.joined[allocation].identity.epoch for allocation in (OWN, OTHER)] == [0, 3]
    realms.set_epoch(2, "")
    assert realms.own.identity.epoch == 2
    with pytest.raises(KeyError):
        realms.set_epoch(1, new_allocation_id())


def test_a_link_is_named_in_greetings_and_its_allocation_is_not(realms: Realms) -> None:
    name = new_allocation_id()
    realms.link(LinkKey(OTHER, name, KEY))
    assert realms.joined[OTHER].identity.allocation == name
    assert list(realms.links) == [name]


def test_who_leaves_an_allocation_forgets_its_keys_and_no_other(realms: Realms) -> None:
    join(realms, OWN)
    third = new_allocation_id()
    for allocation, name in ((OTHER, "a" * 32), (third, "b" * 32)):
        realms.link(LinkKey(allocation, name, KEY))
    realms.leave(OTHER, "done")
    assert set(realms.joined) == {OWN, third}
    assert list(realms.links) == ["b" * 32]
    realms.leave(OTHER, "again")  # as two programs' ends may ask for


def test_relays_end_once_and_not_before_they_are_asked_for(realms: Realms) -> None:
    left, kept = Relay(), Relay()
    join(realms, OWN, kept)
    join(realms, OTHER, left)
    assert realms.relayed
    realms.leave(OTHER, "done")
    assert (left.num_closed, kept.num_closed) == (0, 0)
    realms.close_relays()
    assert (left.num_closed, kept.num_closed) == (1, 0)
    realms.close("the end")
    realms.close_relays()
    assert (left.num_closed, kept.num_closed) == (1, 1)
