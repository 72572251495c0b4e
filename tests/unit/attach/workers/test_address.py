"""Addresses of workers in Monarch's notation."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.attach.workers.address import (
    WorkerEndpoint,
    dialling_addresses,
    listening_addresses,
    parse_worker_address,
)
from monarch_hpc.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "identity", "dial", "bind"),
    [
        ("tcp://n1:4444", "", WorkerEndpoint("n1", 4444), WorkerEndpoint("n1", 4444)),
        ("tcp://[::1]:4444", "", WorkerEndpoint("[::1]", 4444), WorkerEndpoint("[::1]", 4444)),
        ("tcp://n1:4444@tcp://0.0.0.0:5", "", WorkerEndpoint("n1", 4444), WorkerEndpoint("0.0.0.0", 5)),
        ("service<8>@tcp://n1:4444", "service<8>", WorkerEndpoint("n1", 4444), WorkerEndpoint("n1", 4444)),
        ("service@tcp://n1:1@tcp://*:1", "service", WorkerEndpoint("n1", 1), WorkerEndpoint("*", 1)),
        ("tcp://n1:fd7", "", WorkerEndpoint("n1", descriptor=7), WorkerEndpoint("n1", descriptor=7)),
        ("tcp://n1:4@tcp://*:fd7", "", WorkerEndpoint("n1", 4), WorkerEndpoint("*", descriptor=7)),
        ("ipc:///tmp/w0", "", WorkerEndpoint(path="/tmp/w0"), WorkerEndpoint(path="/tmp/w0")),
        ("service<8>@ipc://name", "service<8>", WorkerEndpoint(path="name"), WorkerEndpoint(path="name")),
        ("ipc://@abstract", "", WorkerEndpoint(path="@abstract"), WorkerEndpoint(path="@abstract")),
    ],
)
def test_an_address_says_where_to_dial_and_where_to_listen(
    text: str, identity: str, dial: WorkerEndpoint, bind: WorkerEndpoint
) -> None:
    address = parse_worker_address(text)
    assert (address.identity, address.dial, address.bind, address.text) == (identity, dial, bind, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n1:4444", "write tcp://host:port or ipc://path"),
        ("tcp://n1", "write tcp://host:port"),
        ("tcp://n1:99999", "below 65536"),
        ("tcp://:4444", "write tcp://host:port"),
        ("ipc://", "needs a path"),
        ("inproc://3", "a process of its own"),
        ("tls://n1:4444", "tcp:// is sealed already"),
        ("metatls://n1:4444", "exists at Meta only"),
        ("carrier-pigeon://n1", "use tcp:// or ipc://"),
        ("a b@tcp://n1:4444", "not an identity"),
        ("tcp://n1:4444@ipc://x", "of one kind"),
        ("", "write tcp://host:port or ipc://path"),
    ],
)
def test_anything_else_is_refused_with_its_reason(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_worker_address(text)
    assert problem in str(caught.value) and repr(text) in str(caught.value)


def test_names_become_addresses() -> None:
    assert "tcp://127.0.0.1:4444" in dialling_addresses(WorkerEndpoint("127.0.0.1", 4444))
    assert dialling_addresses(WorkerEndpoint("[::1]", 4444)) == ["tcp://[::1]:4444"]
    assert listening_addresses(WorkerEndpoint("*", 4444)) == ["0.0.0.0"]
    assert listening_addresses(WorkerEndpoint(path="x")) == ["127.0.0.1"]
    assert WorkerEndpoint(path="x").file(Path("/folder")) == Path("/folder/x")
    assert WorkerEndpoint(path="/tmp/x").file(Path("/folder")) == Path("/tmp/x")


def test_who_dials_must_name_a_host() -> None:
    with pytest.raises(ConfigError, match="a listening address"):
        dialling_addresses(WorkerEndpoint("*", 4444))
    with pytest.raises(ConfigError, match=r"'no-such-host\.invalid' does not resolve"):
        dialling_addresses(WorkerEndpoint("no-such-host.invalid", 4444))
