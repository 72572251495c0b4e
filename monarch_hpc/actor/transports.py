"""What a Monarch program declares of its connections.

Here nobody has to: each pair of processes takes the best fabric that both have (config section `fabric`), sealed
with the allocation's key wherever it leaves a host. So that moved programs run, what they declare is checked, and
contradictions are errors as they are there; it changes nothing.
"""

from __future__ import annotations

import enum

from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.arguments import check_instance, check_text

__all__ = ["ChannelTransport", "attach", "enable_transport"]


class ChannelTransport(enum.Enum):
    """Kinds of transports; see `enable_transport`."""

    TcpWithLocalhost = "tcp(localhost)"
    TcpWithHostname = "tcp(hostname)"
    MetaTlsWithHostname = "metatls(hostname)"
    MetaTlsWithIpV6 = "metatls(ipv6)"
    MetaQuicWithHostname = "metaquic(hostname)"
    MetaQuicWithIpV6 = "metaquic(ipv6)"
    Quic = "quic"
    Tls = "tls"
    Local = "local"
    Unix = "unix"


_SHORT = {
    "ipc": ChannelTransport.Unix,
    "tcp": ChannelTransport.TcpWithHostname,
    "tls": ChannelTransport.Tls,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
}
_HERE = {
    ChannelTransport.TcpWithLocalhost,
    ChannelTransport.TcpWithHostname,
    ChannelTransport.Tls,
    ChannelTransport.Local,
    ChannelTransport.Unix,
}

_declared: ChannelTransport | str | None = None
_attached: str | None = None


def enable_transport(transport: ChannelTransport | str) -> None:
    """Declare how this program communicates; checked, remembered, and without effect.

    Fabrics are chosen for each pair of processes, by the configuration (`fabric.order`), and every connection between
    hosts is authenticated and encrypted, whichever is declared here. A program listens nowhere, and binds no address.

    Args:
        transport: a member of `ChannelTransport`; ``ipc``, ``tcp`` or ``tls``; or an address, ``tcp://address:port``.

    Raises:
        TypeError: neither a string nor a member of `ChannelTransport`.
        ValueError: there is no such transport here.
        RuntimeError: another one was declared before, or the program has begun to communicate.
    """
    global _declared
    check_instance("transport", transport, (str, ChannelTransport), "'tcp', 'ipc', 'tls' or a ChannelTransport")
    wanted = _SHORT.get(transport, transport) if isinstance(transport, str) else transport
    if isinstance(wanted, ChannelTransport) and wanted not in _HERE:
        raise ValueError(f"transport {wanted.value!r} exists at Meta only; give 'tcp', or leave the call out")
    if isinstance(wanted, str) and not wanted.startswith(("tcp://", "ipc://", "tls://")):
        raise ValueError(f"no transport {transport!r}: give 'ipc', 'tcp', 'tls' or an address, tcp://address:port")
    if wanted == _declared:
        return
    if _declared is not None:
        was = _declared if isinstance(_declared, str) else _declared.value
        raise RuntimeError(f"transport {was!r} is enabled already; a program has one, and {transport!r} is another")
    if Runtime.current is not None:
        raise RuntimeError("enable_transport() comes before the first use of hosts, procs or actors")
    _declared = wanted


def attach(addr: str) -> None:
    """Declare that this program stands outside its allocation's network; checked, remembered, and without effect.

    A proc that cannot be dialled is reached through the agents, and those through Slurm where no connection passes:
    the program finds the way itself.

    Args:
        addr: of a process inside, ``tcp://host:port`` or ``ipc://path``.

    Raises:
        TypeError: not a string.
        ValueError: not an address.
        RuntimeError: another one was given before.
    """
    global _attached
    check_text("addr", addr)
    if not addr.startswith(("tcp://", "ipc://")) or not addr.partition("://")[2]:
        raise ValueError(f"cannot attach through {addr!r}: give tcp://host:port or ipc://path")
    if _attached not in (None, addr):
        raise RuntimeError(f"this program is attached through {_attached}; use another one for {addr}")
    _attached = addr
