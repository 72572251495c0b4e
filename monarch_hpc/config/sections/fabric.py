"""The sections `fabric`, `ucx` and `rdma` of the configuration: what carries bytes between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from monarch_hpc.core.dataclass import dataclass

__all__ = ["TCP_SEGMENT_MAX_BYTES", "FabricConfig", "InterfacesConfig", "RdmaConfig", "UcxConfig"]

TCP_SEGMENT_MAX_BYTES = 2**19
"""Size of the buffers in which UCX receives over tcp, the same in all processes; see `transport.ucx.settings`.

Each message costs a sendmsg, an epoll_wait and a recv: with 64 KiB a get of 256 MiB took 6 to 17 % more CPU time, with
1 MiB no less. A peer in the middle of a message holds one of them.
"""


@dataclass(frozen=True)
class InterfacesConfig:
    """Network interfaces, best first; empty for all that route."""

    login: tuple[str, ...]
    compute: tuple[str, ...]


@dataclass(frozen=True)
class FabricConfig:
    """The fabrics that carry frames between processes, and their networks."""

    order: tuple[Literal["cma", "ucx", "tcp", "relay"], ...]
    trusted: bool
    interfaces: InterfacesConfig
    port_range: str
    dial_back: bool
    spin_us: int


@dataclass(frozen=True)
class UcxConfig:
    """The libucp to load, and its settings; an empty string leaves the choice to monarch-hpc."""

    library: Path | None
    transports: str
    devices: str
    port_range: str
    tcp_segment_bytes: int
    keepalive_s: float


@dataclass(frozen=True)
class RdmaConfig:
    """One-sided memory."""

    staged: Literal["warn", "refuse"]
