"""Addresses are literal: nothing that would need a resolver is one."""

from __future__ import annotations

import pytest

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.transport.address import parse_address, render_address


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
