"""Declarations of transports are checked."""

from __future__ import annotations

import pytest

from monarch_hpc.actor import transports
from monarch_hpc.actor.transports import ChannelTransport, attach, enable_transport


@pytest.fixture(autouse=True)
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "_declared", None)
    monkeypatch.setattr(transports, "_attached", None)


def test_one_transport_may_be_declared_again_and_no_other() -> None:
    enable_transport("tcp")
    enable_transport(ChannelTransport.TcpWithHostname)
    with pytest.raises(RuntimeError, match=r"'tcp\(hostname\)' is enabled already.*cannot also enable 'ipc'"):
        enable_transport("ipc")


@pytest.mark.parametrize("known", ["ipc", "tls", ChannelTransport.Local, "tcp://127.0.0.1:0"])
def test_what_exists_is_taken(known: str | ChannelTransport) -> None:
    enable_transport(known)


@pytest.mark.parametrize("unknown", ["foo", "metatls", ChannelTransport.Quic, ""])
def test_what_does_not_exist_is_refused(unknown: str | ChannelTransport) -> None:
    with pytest.raises(ValueError, match="transport"):
        enable_transport(unknown)


def test_one_way_in_may_be_declared() -> None:
    attach("tcp://login:4444")
    attach("tcp://login:4444")
    with pytest.raises(RuntimeError, match="attached through tcp://login:4444"):
        attach("ipc:///tmp/x")
    with pytest.raises(ValueError, match="login"):
        attach("login")
