"""Addresses are literal: nothing that would need a resolver is one."""

from __future__ import annotations

import contextlib
import socket

import pytest

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.transport.address import bind_to, bind_within, parse_address, render_address


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("10.0.0.1", 7), "tcp://10.0.0.1:7"),
        (("::1", 65535, 0, 0), "tcp://[::1]:65535"),
        (("fe80::1", 1), "tcp://[fe80::1]:1"),
    ],
)
def test_an_address_reads_back_as_rendered(name: tuple[str, int] | tuple[str, int, int, int], address: str) -> None:
    assert render_address(name) == address
    assert parse_address(address) == name[:2]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nowhere",
        "tcp://",
        "tcp://10.0.0.1",
        "tcp://10.0.0.1:0",
        "tcp://10.0.0.1:65536",
        "tcp://10.0.0.1:x",
        "tcp://localhost:80",
        "tcp://10.0.0:80",
        "udp://10.0.0.1:80",
        "relay+tcp://10.0.0.1:80",
        "tcp://[fe80::1%eth0]:80",
        "tcp://[::1:80",
    ],
)
def test_anything_else_cannot_be_reached(address: str) -> None:
    with pytest.raises(PeerLost, match="not an address of the form tcp://address:port"):
        parse_address(address)


def test_ports_of_a_range_are_each_taken_once_and_then_the_key_is_named() -> None:
    with contextlib.ExitStack() as held:

        def take_all() -> None:
            taken: set[int] = set()
            for _ in range(11):
                port = held.enter_context(bind_within("127.0.0.1", "29000-29009")).getsockname()[1]
                assert 29000 <= port <= 29009 and port not in taken
                taken.add(port)

        with pytest.raises(PeerLost, match=r"no port of 29000-29009 is free \(config key fabric\.port_range\)"):
            take_all()


def test_a_connection_of_an_earlier_listener_keeps_no_port_of_a_range() -> None:
    with bind_within("127.0.0.1", "29010-29010") as listener:
        listener.setblocking(True)
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.close()  # this side closes first: its port waits for a minute
        client.close()
    bind_within("127.0.0.1", "29010-29010").close()


@pytest.mark.parametrize("port_range", ["", "29020-29020"])
def test_an_address_of_another_machine_cannot_be_bound(port_range: str) -> None:
    with pytest.raises(PeerLost, match="cannot listen there: Cannot assign requested address"):
        bind_within("203.0.113.1", port_range) if port_range else bind_to("203.0.113.1", 0)
