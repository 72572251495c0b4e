"""Samples of network ports, from /sys: InfiniBand and RoCE, Slingshot, and ethernet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from monarch_hpc.wire.tables.samples import NetSample

__all__ = ["SYS", "sample_ports"]

SYS = Path("/sys")

_WORD_BYTES = 4
"""InfiniBand counts data in words."""

_IB_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_IB_AGAIN = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
_IB_CONGESTION = ("np_cnp_sent", "rp_cnp_handled")

_CXI_ERRORS = ("hni_pcs_uncorrected_cw", "hni_sts_rx_bad_octets", "hni_llr_tx_replay_event", "pct_spt_timeouts")
_CXI_AGAIN = ("pct_retry_srb_requests", "pct_trs_replay_pend_drops")
_CXI_CONGESTION = tuple(f"hni_tx_paused_{number}" for number in range(8))


def sample_ports(host: str, t: float, root: Path = SYS) -> Iterator[NetSample]:
    """Look at all ports of this host; a counter that a device does not have counts as 0.

    Args:
        root: where /sys is.
    """
    found = root / "class"
    for device in _names(found / "infiniband"):
        for port in _names(found / "infiniband" / device / "ports"):
            if port.isdecimal():
                yield _infiniband(host, t, device, int(port), found / "infiniband" / device / "ports" / port)
    for device in _names(found / "cxi"):
        yield _slingshot(host, t, device, found / "cxi" / device / "device" / "telemetry")
    for device in _names(found / "net"):
        if device != "lo":
            yield _ethernet(host, t, device, found / "net" / device / "statistics")


def _infiniband(host: str, t: float, device: str, port: int, folder: Path) -> NetSample:
    main, hardware = folder / "counters", folder / "hw_counters"
    return NetSample(
        host,
        device,
        port,
        "infiniband",
        t,
        _number(main / "port_xmit_data") * _WORD_BYTES,
        _number(main / "port_rcv_data") * _WORD_BYTES,
        _sum(main, _IB_ERRORS),
        _sum(hardware, _IB_AGAIN),
        _number(main / "port_xmit_wait") + _sum(hardware, _IB_CONGESTION),
    )


def _slingshot(host: str, t: float, device: str, folder: Path) -> NetSample:
    return NetSample(
        host,
        device,
        0,
        "slingshot",
        t,
        _number(folder / "hni_sts_tx_ok_octets"),
        _number(folder / "hni_sts_rx_ok_octets"),
        _sum(folder, _CXI_ERRORS),
        _sum(folder, _CXI_AGAIN),
        _sum(folder, _CXI_CONGESTION),
    )


def _ethernet(host: str, t: float, device: str, folder: Path) -> NetSample:
    errors = ("tx_errors", "rx_errors", "tx_dropped", "rx_missed_errors")
    return NetSample(
        host,
        device,
        0,
        "ethernet",
        t,
        _number(folder / "tx_bytes"),
        _number(folder / "rx_bytes"),
        _sum(folder, errors),
        0,  # the kernel counts these for all devices together
        _number(folder / "collisions"),
    )


def _sum(folder: Path, names: tuple[str, ...]) -> int:
    return sum(_number(folder / name) for name in names)


def _number(path: Path) -> int:
    try:
        # Slingshot's files have the time of the count behind it: ``17@1700000000.5``.
        text = path.read_text().partition("@")[0].strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdecimal() else 0


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
