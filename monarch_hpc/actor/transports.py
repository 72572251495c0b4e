"""Monarch's declarations of transports, kept as checked no-ops so that ported programs run.

No declaration is needed: each pair of processes uses the best fabric that both have (config section `fabric`), sealed
with the allocation's key wherever it leaves a host. Declarations are checked, and contradictions raise as in Monarch.
"""

from __future__ import annotations

from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.config.channel_transport import ChannelTransport, parse_transport
from monarch_hpc.core.arguments import check_text

__all__ = ["ChannelTransport", "attach", "enable_transport"]


_declared: ChannelTransport | str | None = None
_attached: str | None = None


def enable_transport(transport: ChannelTransport | str) -> None:
    """Declare the transport of this program; checked and remembered, but without effect.

    Whatever is declared, the configuration (`fabric.order`) chooses the fabric for each pair of processes, and every
    connection between hosts is authenticated and encrypted. A program does not listen on any address.

    Args:
        transport: a member of `ChannelTransport`; ``ipc``, ``tcp`` or ``tls``; or an address, ``tcp://address:port``.

    Raises:
        TypeError: *transport* is neither a string nor a member of `ChannelTransport`.
        ValueError: there is no such transport here.
        RuntimeError: another transport was declared before, or the program already communicates.
    """
    global _declared
    wanted = parse_transport(transport)
    if wanted == _declared:
        return
    if _declared is not None:
        was = _declared if isinstance(_declared, str) else _declared.value
        raise RuntimeError(f"transport {was!r} is enabled already; a program cannot also enable {transport!r}")
    if Runtime.current is not None:
        raise RuntimeError("call enable_transport() before the first use of hosts, procs or actors")
    _declared = wanted


def attach(addr: str) -> None:
    """Declare that this program runs outside its allocation's network; checked and remembered, but without effect.

    The program finds a route by itself: to procs that it cannot dial through the agents, and to the agents through
    Slurm where no connection is possible.

    Args:
        addr: address of a process inside, ``tcp://host:port`` or ``ipc://path``.

    Raises:
        TypeError: *addr* is not a string.
        ValueError: *addr* is not an address.
        RuntimeError: another address was given before.
    """
    global _attached
    check_text("addr", addr)
    if not addr.startswith(("tcp://", "ipc://")) or not addr.partition("://")[2]:
        raise ValueError(f"cannot attach through {addr!r}: give tcp://host:port or ipc://path")
    if _attached not in (None, addr):
        raise RuntimeError(f"this program is attached through {_attached}; use another one for {addr}")
    _attached = addr
