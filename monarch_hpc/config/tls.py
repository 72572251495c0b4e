"""Parses values of UCX_TLS: which of UCX's transports they open.

If UCX's versions differ in the interpretation of a value, the one that opens more transports is assumed: users notice
an unnecessary refusal, but not an open port.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

__all__ = ["ALIASES", "TCP_REFUSED", "keep_private", "leave_out_rdma", "only_rdma", "opens"]

TCP_REFUSED = (
    "opens UCX over tcp, which trusts its network, while fabric.trusted is false; name transports without tcp, "
    "e.g. sm,ib,self, or set fabric.trusted: true in your own file if no one else can reach that network"
)
"""Reason to refuse such a value on a network that others can reach, and advice."""

ALIASES = {
    "cuda": ("cuda_copy", "cuda_ipc", "gdr_copy"),
    "rocm": ("rocm_copy", "rocm_ipc", "rocm_gdr"),
    "mm": ("posix", "sysv", "xpmem"),
    "sm": ("posix", "sysv", "xpmem", "cma", "knem"),
    "shm": ("posix", "sysv", "xpmem", "cma", "knem"),
    "ib": ("rc_verbs", "rc_mlx5", "ud_verbs", "ud_mlx5", "dc_mlx5", "srd"),
    "rc": ("rc_verbs", "rc_mlx5"),
    "rc_v": ("rc_verbs",),
    "rc_x": ("rc_mlx5",),
    "ud": ("ud_verbs", "ud_mlx5"),
    "ud_v": ("ud_verbs",),
    "ud_x": ("ud_mlx5",),
    "dc": ("dc_mlx5",),
    "dc_x": ("dc_mlx5",),
}
"""Names that stand for several transports."""

_SHARED_WITH_OTHERS = ("sysv", "knem")
"""Transports whose memory other users can open. UCX creates the segments of sysv with mode 0660, and /proc/sysvipc/shm
lists them to everyone, so all users of the same primary group can write to them. knem serves any process that passes
the number of a region."""

_KNOWN = tuple(
    sorted({"self", "tcp", "cma", "posix", "xpmem"}.union(*ALIASES.values()).difference(_SHARED_WITH_OTHERS))
)


def keep_private(tls: str) -> str:
    """Return *tls* without the transports whose memory other users can open.

    Aliases and wildcards that stand for one of those are replaced by the names of the rest.
    """
    return _leave_out(tls, _SHARED_WITH_OTHERS)


def leave_out_rdma(tls: str) -> str:
    """Return *tls* without InfiniBand and RoCE; aliases and wildcards as in `keep_private`."""
    return _leave_out(tls, ALIASES["ib"])


def only_rdma(tls: str) -> str:
    """Return what *tls* opens of InfiniBand and RoCE; empty if it opens nothing of it."""
    if tls.lstrip().startswith("^"):
        return ",".join(name for name in ALIASES["ib"] if opens(tls, name))
    # Aliases stay: they also stand for what the first contact needs.
    named = [entry for entry in tls.split(",") if any(_may_name(entry, name) for name in ALIASES["ib"])]
    return ",".join("ib" if _may_name(entry, "tcp") else entry.strip() for entry in named)


def _leave_out(tls: str, transports: Sequence[str]) -> str:
    text = tls.strip()
    if text.startswith("^"):
        return ",".join([text, *(name for name in transports if opens(text, name))]).replace("^,", "^")
    names: list[str] = []
    for entry in text.split(","):
        if not any(_may_name(entry, name) for name in transports):
            names.append(entry)
        elif _may_name(entry, "all"):
            return "^" + ",".join(transports)
        else:
            names += [name for name in _KNOWN if name not in transports and _may_name(entry, name)]
    return ",".join(dict.fromkeys(names)) or "self"


def opens(tls: str, transport: str) -> bool:
    """Tell whether *tls* lets UCX open *transport*.

    Args:
        tls: comma-separated names and aliases; ``all`` for every transport; a ``^`` in front opens all transports
            except those named. UCX refuses an empty value.
        transport: a transport's own name, such as ``tcp`` or ``posix``.
    """
    if tls.lstrip().startswith("^"):
        # UCX 1.13 compares excluded names exactly: `^TCP`, `^t*` and `^ tcp` leave tcp open.
        excluded = tls.lstrip()[1:].split(",")
        return not any(transport == entry or transport in ALIASES.get(entry, ()) for entry in excluded)
    return any(_may_name(entry, transport) for entry in tls.split(","))


def _may_name(entry: str, transport: str) -> bool:
    # A backslash disables the alias of a name; `name:aux` opens a transport for connection setup only.
    name = entry.strip().lower().removeprefix("\\").partition(":")[0]
    return name == "all" or fnmatchcase(transport, name) or transport in ALIASES.get(name, ())
