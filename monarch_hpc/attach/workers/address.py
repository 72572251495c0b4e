"""Addresses of workers that were started by hand, as Monarch programs write them.

tcp://host:port                      ipc://path                the two places there are
tcp://host:port@tcp://0.0.0.0:port   dialled as the first, listened on at the second
service<kv5xUjSXmBR>@tcp://...       with an identity, which is for people
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.host_address import resolve_host
from monarch_hpc.core.uid import ProcId
from monarch_hpc.transport.address import render_address

__all__ = ["WorkerAddress", "WorkerEndpoint", "dialling_addresses", "listening_addresses", "parse_worker_address"]

_FORM = re.compile(r"(?:(?P<identity>[^@:/]+)@)?(?P<dial>[a-z-]+://.*?)(?:@(?P<bind>[a-z-]+://.*))?")
_TCP = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]/@]+):(?P<port>\d{1,5})")
_EVERY = ("*", "0.0.0.0")
_WHY = {
    "inproc": "a worker is a process of its own",
    "tls": "tcp:// is sealed already, by the key that both sides hold",
    "metatls": "it exists at Meta only; tcp:// is sealed already, by the key that both sides hold",
    "metatls-hostname": "it exists at Meta only; tcp:// is sealed already, by the key that both sides hold",
    "quic": "tcp:// is sealed already, by the key that both sides hold",
}


@dataclass(frozen=True, slots=True)
class WorkerEndpoint:
    """Where a worker can be met.

    Attributes:
        host: name or IP address; empty for a file.
        path: of the file in which a worker on this machine says where it listens; empty for a host.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    def file(self, folder: Path) -> Path:
        """The file; one without a folder of its own is in *folder*."""
        return folder / self.path

    def __str__(self) -> str:
        return f"ipc://{self.path}" if self.path else f"tcp://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """One worker.

    Attributes:
        text: as it was written.
        identity: before the ``@``; empty where none was given.
        dial: where clients look for it.
        bind: where it listens.
    """

    text: str
    identity: str
    dial: WorkerEndpoint
    bind: WorkerEndpoint


def parse_worker_address(text: str) -> WorkerAddress:
    """Read an address.

    Raises:
        ConfigError: it is none; it says what is wrong.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise _invalid(text, "write tcp://host:port or ipc://path")
    identity = match["identity"] or ""
    if identity:
        try:
            ProcId.from_string(identity)
        except ValueError as error:
            raise _invalid(text, f"before the @ stands no identity: {error}") from error
    dial = _parse_endpoint(text, match["dial"])
    bind = _parse_endpoint(text, match["bind"]) if match["bind"] else dial
    if bool(dial.path) != bool(bind.path):
        raise _invalid(text, "a worker is dialled and listens in one way, tcp:// or ipc://")
    return WorkerAddress(text, identity, dial, bind)


def listening_addresses(endpoint: WorkerEndpoint) -> list[str]:
    """The IP addresses to listen on; loopback for a worker that is met through a file.

    Raises:
        ConfigError: the name has none.
    """
    if endpoint.path:
        return ["127.0.0.1"]
    return ["0.0.0.0"] if endpoint.host in _EVERY else _look_up(endpoint)


def dialling_addresses(endpoint: WorkerEndpoint) -> list[str]:
    """``tcp://address:port`` for each IP address of the name.

    Raises:
        ConfigError: the name has none, or stands for every address.
    """
    if endpoint.host in _EVERY:
        raise _invalid(str(endpoint), "this is where to listen; name the host that is to be dialled")
    return [render_address((host, endpoint.port)) for host in _look_up(endpoint)]


def _look_up(endpoint: WorkerEndpoint) -> list[str]:
    try:
        return resolve_host(endpoint.host.strip("[]"))
    except OSError as error:
        raise _invalid(str(endpoint), f"no address of {endpoint.host!r} is known here: {error.strerror}") from error


def _parse_endpoint(text: str, url: str) -> WorkerEndpoint:
    scheme, _, rest = url.partition("://")
    if scheme == "ipc":
        if not rest or "\0" in rest:
            raise _invalid(text, "ipc:// needs a path, or a name for one in your state directory")
        return WorkerEndpoint(path=rest)
    if scheme == "tcp":
        match = _TCP.fullmatch(rest)
        if match is None or int(match["port"]) > 65535:
            raise _invalid(text, "write tcp://host:port, a port below 65536")
        return WorkerEndpoint(match["host"], int(match["port"]))
    raise _invalid(text, f"no transport {scheme}:// here: {_WHY.get(scheme, 'there are tcp:// and ipc://')}")


def _invalid(text: str, problem: str) -> ConfigError:
    return ConfigError("", "", f"worker address {text!r}", problem)
