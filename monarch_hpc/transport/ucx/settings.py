"""Configures libucp: the environment variables that this process sets for it, and the settings that it refuses.

Pure: the environment and the machine come as arguments. The variables must be set from before libucp is loaded, since
its libraries read some of them (signals, log) in their constructors, until the worker is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_hpc.config.schema import FabricConfig, UcxConfig
from monarch_hpc.config.sections.fabric import TCP_SEGMENT_MAX_BYTES
from monarch_hpc.config.tls import ALIASES, TCP_REFUSED, keep_private, only_rdma, opens
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.transport.ucx.machine import Machine

__all__ = ["check_transports", "choose_transports", "named_library", "ucx_variables", "wants_ucx"]

# `self` is the process itself, which UCX needs; cma copies between two processes of one user in a single step.
_SHARED_MEMORY = ("self", "posix", "cma")
# Aliases. `ib` covers rc, dc and ud, and what they need for the first contact, whatever the device supports.
_NVIDIA, _AMD, _RDMA = "cuda", "rocm", "ib"

# These register no memory of the program. For others, and GPUs, UCX must see what is unmapped: it writes hooks into the
# code of mmap and munmap while other threads may execute it; see docs/design/0017.
_WITHOUT_HOOKS = frozenset(("self", "posix", "sysv", "cma", "tcp"))

_FIXED = {
    # Without this, UCX replaces shared memory by tcp, or never notices that a peer was killed.
    "UCX_POSIX_ERROR_HANDLING": "y",
    # UCX would handle SIGSEGV and the like, and SIGHUP, instead of Python and the user's program.
    "UCX_ERROR_SIGNALS": "",
    "UCX_DEBUG_SIGNO": "0",
    # A failed assertion ends the process. Debug builds of UCX freeze it instead, which only a heartbeat would notice,
    # and 1.13 collects a backtrace, for which a broken process may wait for ever.
    "UCX_HANDLE_ERRORS": "none",
    # Otherwise a thread offers UCX's objects to any process that listens at a well-known address, in 1.13 in /tmp.
    "UCX_VFS_ENABLE": "n",
    # Standard output is the user's, and so is standard error: warnings are about devices that were never requested,
    # errors also about peers that end while we connect. UCX reports failures to us as well, and we raise them.
    "UCX_LOG_FILE": "stderr",
    "UCX_LOG_LEVEL": "fatal",
    # Versions differ in the variables that they know.
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}

# The buffers in which UCX's tcp receives. Its sender makes messages as long as its own: one that is longer than the
# receiver's is written beyond its end, and only debug builds check that. So it is no setting: all processes have the
# same, whatever the user's environment says.
_TCP_RECEIVE_BYTES = TCP_SEGMENT_MAX_BYTES

# For a peer whose network went silent; below liveness.dead_s, so that UCX does not notice last. Since UCX 1.22.
_TCP_USER_TIMEOUT = "10s"

# For a peer that does not answer while UCX connects it over InfiniBand or RoCE: a day, which is as good as never. When
# UCX gives such a peer up after we have closed its endpoint, it asserts that its own request to connect is none
# (`ucp_request.c:684` in 1.13.1), and ends the process. Its default is 30 s, in later versions five minutes.
_UD_TIMEOUT = "1440m"


def ucx_variables(
    fabric: FabricConfig,
    ucx: UcxConfig,
    environ: Mapping[str, str],
    machine: Machine,
    *,
    login: bool,
    interfaces: Sequence[str],
    segments: str = "",
) -> dict[str, str]:
    """Return the variables to set for UCX; those that the user has set stay.

    Except for transports that are not allowed, and the size of the receive buffers of its tcp.

    Args:
        environ: environment of this process.
        login: this process is not on a host of the allocation; it gets no RDMA, which login nodes have no share of, and
            often no permission for.
        interfaces: names of the interfaces to listen on, for UCX over tcp.
        segments: folder for shared memory; empty leaves the choice to UCX.

    Raises:
        ConfigError: tcp was requested on a network that is not trusted.
    """
    tls = choose_transports(fabric, ucx, environ, machine, login=login)
    # Never over tcp: UCX answers a check of a connection that has ended by a new connection to the peer, made while it
    # reads from that peer; with more to read behind the check, it crashes (uct_tcp_ep_progress_am_rx, up to 1.13).
    # There the kernel reports the death of a peer without being asked.
    keepalive = "inf" if opens(tls, "tcp") else f"{ucx.keepalive_s:g}s"
    variables = {**_FIXED, "UCX_KEEPALIVE_INTERVAL": keepalive}
    if _WITHOUT_HOOKS.issuperset(tls.split(",")):
        variables["UCX_MEM_EVENTS"] = "n"
    if segments:
        variables["UCX_POSIX_DIR"] = segments
    if only_rdma(tls):
        variables["UCX_UD_TIMEOUT"] = _UD_TIMEOUT
    devices = ucx.devices
    if opens(tls, "tcp"):
        variables["UCX_TCP_TX_SEG_SIZE"] = str(ucx.tcp_segment_bytes)
        variables["UCX_TCP_USER_TIMEOUT"] = _TCP_USER_TIMEOUT
        if ucx.port_range:
            variables["UCX_TCP_PORT_RANGE"] = ucx.port_range
        # One list for all networks: naming interfaces alone would leave RDMA without a device.
        devices = devices or ",".join([*interfaces, *(() if login else machine.rdma)])
    if devices:
        variables["UCX_NET_DEVICES"] = devices
    ours = {"UCX_TLS": tls, **({"UCX_TCP_RX_SEG_SIZE": str(_TCP_RECEIVE_BYTES)} if opens(tls, "tcp") else {})}
    return {**ours, **{name: value for name, value in variables.items() if name not in environ}}


def choose_transports(
    fabric: FabricConfig, ucx: UcxConfig, environ: Mapping[str, str], machine: Machine, *, login: bool
) -> str:
    """Return the transports that UCX may open, in the form of UCX_TLS; arguments and errors as in `ucx_variables`.

    None of them shares memory with other users, whatever was requested.
    """
    check_transports(fabric, ucx, environ)
    asked = environ.get("UCX_TLS", "").strip() or ucx.transports
    if asked and not login:
        return keep_private(asked)
    ours = [*_SHARED_MEMORY]
    if machine.nvidia:
        ours += ALIASES[_NVIDIA]
    if machine.amd:
        ours += ALIASES[_AMD]
    if fabric.trusted:
        ours.append("tcp")
    if machine.rdma and not login:
        ours.append(_RDMA)
    return ",".join(name for name in ours if not asked or name == "self" or opens(asked, name))


def wants_ucx(fabric: FabricConfig) -> bool:
    """Whether to use UCX where possible: tcp works everywhere, so a fabric listed after it would never be chosen."""
    order = fabric.order
    return "ucx" in order and order.index("ucx") < order.index("tcp")


def named_library(ucx: UcxConfig, environ: Mapping[str, str]) -> str:
    """Return the libucp that the user names; empty to search for one.

    The variable takes precedence: config key `agent.prologue` may set it on hosts whose libucp is not the login node's.
    """
    return environ.get("MONARCH_LIBUCP") or str(ucx.library or "")


def check_transports(fabric: FabricConfig, ucx: UcxConfig, environ: Mapping[str, str]) -> None:
    """Refuse UCX over tcp, requested by the user's UCX_TLS or by the configuration, on a network that is not trusted.

    Raises:
        ConfigError: it was requested.
    """
    if fabric.trusted or not wants_ucx(fabric):
        return
    named = {"UCX_TLS": environ.get("UCX_TLS", "").strip(), "ucx.transports": ucx.transports}
    for name, text in named.items():
        if opens(text, "tcp"):
            source = "the environment" if name.isupper() else "the configuration"
            raise ConfigError(name, repr(text), source, TCP_REFUSED)
