"""Detects cut connections, on which the other machine's kernel no longer answers.

TCP itself never notices while nothing is sent, and takes a quarter of an hour when something is. Processes are not
judged here: a kernel acknowledges for a process that computes, is stopped, or has not read for an hour.

An idle connection is probed by the kernel (keepalive). One with data in flight is not, so its acknowledgements are
checked here. TCP_USER_TIMEOUT would do that too, but it also ends connections whose receiver merely does not read. A
cut of such a connection is detected late, since the kernel probes it ever less often, down to once in two minutes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer

__all__ = ["CutDetector"]

_NUM_PROBES = 4
"""Unanswered probes after which an idle connection is cut; a single lost packet proves nothing."""

# From the kernel's struct tcp_info, which only grows at its end: tcpi_probes, tcpi_unacked, tcpi_last_data_sent and
# tcpi_last_ack_recv.
_TCP_INFO = struct.Struct("@3xB20xI16xI8xI")


class CutDetector:
    """The connections of one process that may be cut. For the driver of the engine.

    Args:
        cut_s: longest silence of the other kernel; a connection may be declared cut in the last fifth of it.
    """

    def __init__(self, engine: Engine, cut_s: float) -> None:
        self._engine = engine
        self._cut_s = cut_s
        self._period_s = max(1, round(cut_s / (_NUM_PROBES + 1)))  # the kernel counts in whole seconds
        self._watched: dict[object, _WatchedSocket] = {}
        self._timer: Timer | None = None

    def watch(self, key: object, sock: socket.socket, cut: Callable[[str], None]) -> None:
        """Call *cut* with the reason when *sock* is cut with data in flight; a cut idle connection fails its next read.

        Lasts until `forget`. Sockets other than TCP, such as a relay's, are ignored.
        """
        if sock.family == socket.AF_UNIX:
            return
        probe_s = self._period_s
        for option, value in (
            (socket.TCP_KEEPIDLE, probe_s),
            (socket.TCP_KEEPINTVL, probe_s),
            (socket.TCP_KEEPCNT, max(1, round(self._cut_s / probe_s) - 1)),
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._watched[key] = _WatchedSocket(sock, cut)
        if self._timer is None:
            self._timer = self._engine.call_later(self._period_s, self._check)

    def forget(self, key: object) -> None:
        """Stop watching one connection; unknown ones are ignored."""
        self._watched.pop(key, None)

    def close(self) -> None:
        """Stop watching all connections."""
        if self._timer is not None:
            self._timer.cancel()
        self._watched.clear()

    def _check(self) -> None:
        self._timer = self._engine.call_later(self._period_s, self._check) if self._watched else None
        for entry in list(self._watched.values()):
            try:
                silent_s = entry.silent_s()
            except OSError:
                continue  # it is closing; its reader reports why
            if silent_s and silent_s >= self._cut_s - self._period_s:
                entry.cut(f"its machine has not acknowledged anything for {silent_s:.1f} s: the network between is cut")


class _WatchedSocket:
    """One connection, checked periodically."""

    __slots__ = ("_owed", "_sock", "cut")

    def __init__(self, sock: socket.socket, cut: Callable[[str], None]) -> None:
        self.cut = cut
        self._sock = sock
        self._owed = False

    def silent_s(self) -> float:
        """Seconds for which the other kernel has owed an answer; 0 if it owes none, or owed none at the last check."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        num_probes, num_unacknowledged, sent_ms, received_ms = _TCP_INFO.unpack(info)
        # While the receiver does not read, the kernel sends probes ever less often, each of which is answered: silence
        # in between proves nothing. An answer may also happen to be in flight at this check, but hardly at two.
        owed, self._owed = self._owed, num_probes > 1 or (num_unacknowledged > 0 and sent_ms < received_ms)
        return float(received_ms) / 1000 if owed and self._owed else 0.0
