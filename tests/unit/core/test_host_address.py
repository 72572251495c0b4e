"""Host names resolve, even on a machine that resolves neither localhost nor its own name."""

from __future__ import annotations

import socket
from typing import NoReturn

import pytest

from monarch_hpc.core.machine.host_address import resolve_host
from monarch_hpc.core.machine.interfaces import read_interfaces

NAME = "own-name.invalid"


def knows_nothing(*_: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def own_name() -> str:
    return NAME


def test_what_the_machine_resolves_is_taken() -> None:
    assert resolve_host("127.0.0.1") == ["127.0.0.1"]
    assert resolve_host("::1", socket.AF_INET6) == ["::1"]


def test_addresses_are_told_once_and_without_those_of_a_link() -> None:
    found = [(0, 0, 0, "", (address, 0)) for address in ("10.0.0.1", "fe80::1%eth0", "10.0.0.1", "10.0.0.2")]
    assert resolve_host("n1", look_up=lambda *_: found) == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_UNSPEC, "127.0.0.1"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
)
def test_localhost_is_loopback_where_nothing_resolves_it(family: socket.AddressFamily, address: str) -> None:
    assert resolve_host("localhost", family, look_up=knows_nothing) == [address]


def test_the_own_name_is_the_own_interfaces_where_nothing_resolves_it() -> None:
    addresses = resolve_host(NAME, own_name=own_name, look_up=knows_nothing)
    assert addresses and set(addresses) <= set(read_interfaces().values())
    assert resolve_host(NAME, socket.AF_INET, own_name=own_name, look_up=knows_nothing) == addresses


def test_other_names_are_not_guessed() -> None:
    for name, family in (("n1", socket.AF_UNSPEC), (NAME, socket.AF_INET6)):
        with pytest.raises(OSError, match="not known"):
            resolve_host(name, family, own_name=own_name, look_up=knows_nothing)
