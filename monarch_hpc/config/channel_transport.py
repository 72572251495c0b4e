"""Monarch's names of transports, which programs declare and which have no effect here."""

from __future__ import annotations

import enum

from monarch_hpc.core.arguments import check_instance

__all__ = ["ChannelTransport", "parse_transport"]


class ChannelTransport(enum.Enum):
    """Kinds of transports; see `actor.enable_transport`."""

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
_ACCEPTED = {
    ChannelTransport.TcpWithLocalhost,
    ChannelTransport.TcpWithHostname,
    ChannelTransport.Tls,
    ChannelTransport.Local,
    ChannelTransport.Unix,
}


def parse_transport(transport: object) -> ChannelTransport | str:
    """Check the declaration of a transport.

    Args:
        transport: a member of `ChannelTransport`; ``ipc``, ``tcp`` or ``tls``; or an address, ``tcp://address:port``.

    Returns:
        The member, or the address.

    Raises:
        TypeError: *transport* is neither a string nor a member of `ChannelTransport`.
        ValueError: there is no such transport here.
    """
    check_instance("transport", transport, (str, ChannelTransport), "'tcp', 'ipc', 'tls' or a ChannelTransport")
    wanted = _SHORT.get(transport, transport) if isinstance(transport, str) else transport
    if isinstance(wanted, ChannelTransport):
        if wanted not in _ACCEPTED:
            raise ValueError(f"transport {wanted.value!r} exists at Meta only; give 'tcp', or leave the call out")
        return wanted
    if not str(wanted).startswith(("tcp://", "ipc://", "tls://")):
        raise ValueError(f"no transport {transport!r}: give 'ipc', 'tcp', 'tls' or an address, tcp://address:port")
    return str(wanted)
