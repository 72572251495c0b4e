"""Addresses of manually started workers, in Monarch's notation.

tcp://host:port                      ipc://path                the two kinds of address
tcp://host:port@tcp://0.0.0.0:port   dialled at the first, listening at the second
tcp://host:fd7                       listening on descriptor 7, a bound socket that the worker inherited
service<kv5xUjSXmBR>@tcp://...       with an identity, for people to read
"""

from __future__ import annotations

import re
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.machine.host_address import resolve_host
from monarch_hpc.core.uid import ProcId
from monarch_hpc.transport.address import render_address

__all__ = ["WorkerAddress", "WorkerEndpoint", "dialling_addresses", "listening_addresses", "parse_worker_address"]

_FORM = re.compile(r"(?:(?P<identity>[^@:/]+)@)?(?P<dial>[a-z-]+://.*?)(?:@(?P<bind>[a-z-]+://.*))?")
_TCP = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]/@]+):(?P<fd>fd)?(?P<port>\d{1,5})")
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
    """A network address or file where a worker can be reached.

    Attributes:
        host: name or IP address; empty for a file.
        path: file in which a worker on this machine publishes its addresses; empty for a host.
        descriptor: number of an inherited socket, which is bound; None for an address.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    descriptor: int | None = None

    def file(self, folder: Path) -> Path:
        """The path of the file; a relative one is in *folder*."""
        return folder / self.path

    def __str__(self) -> str:
        if self.path:
            return f"ipc://{self.path}"
        return f"tcp://{self.host}:{self.port}" if self.descriptor is None else f"tcp://{self.host}:fd{self.descriptor}"


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """The address of one worker.

    Attributes:
        text: the address as written.
        identity: the part before the ``@``; empty if not given.
        dial: endpoint that clients dial.
        bind: endpoint that the worker listens on.
    """

    text: str
    identity: str
    dial: WorkerEndpoint
    bind: WorkerEndpoint


def parse_worker_address(text: str) -> WorkerAddress:
    """Parse an address.

    Raises:
        ConfigError: *text* is not a valid address.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise _invalid(text, "write tcp://host:port or ipc://path")
    identity = match["identity"] or ""
    if identity:
        try:
            ProcId.from_string(identity)
        except ValueError as error:
            raise _invalid(text, f"the part before the @ is not an identity: {error}") from error
    dial = _parse_endpoint(text, match["dial"])
    bind = _parse_endpoint(text, match["bind"]) if match["bind"] else dial
    if bool(dial.path) != bool(bind.path):
        raise _invalid(text, "both parts must be of one kind, tcp:// or ipc://")
    return WorkerAddress(text, identity, dial, bind)


def listening_addresses(endpoint: WorkerEndpoint) -> list[str]:
    """Return the IP addresses to listen on; loopback for an endpoint that is a file.

    Raises:
        ConfigError: the name does not resolve.
    """
    if endpoint.path:
        return ["127.0.0.1"]
    return ["0.0.0.0"] if endpoint.host in _EVERY else _look_up(endpoint)


def dialling_addresses(endpoint: WorkerEndpoint) -> list[str]:
    """Return ``tcp://address:port`` for each IP address of the name.

    Raises:
        ConfigError: the name does not resolve, is a wildcard, or the endpoint is a descriptor.
    """
    if endpoint.descriptor is not None:
        raise _invalid(str(endpoint), "this is a descriptor of the worker; give the port that its socket is bound to")
    if endpoint.host in _EVERY:
        raise _invalid(str(endpoint), "this is a listening address; give the host to dial")
    return [render_address((host, endpoint.port)) for host in _look_up(endpoint)]


def _look_up(endpoint: WorkerEndpoint) -> list[str]:
    try:
        return resolve_host(endpoint.host.strip("[]"))
    except OSError as error:
        raise _invalid(str(endpoint), f"{endpoint.host!r} does not resolve here: {error.strerror}") from error


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
        number = int(match["port"])
        return (
            WorkerEndpoint(match["host"], descriptor=number) if match["fd"] else WorkerEndpoint(match["host"], number)
        )
    raise _invalid(text, f"transport {scheme}:// is not supported: {_WHY.get(scheme, 'use tcp:// or ipc://')}")


def _invalid(text: str, problem: str) -> ConfigError:
    return ConfigError("", "", f"worker address {text!r}", problem)
