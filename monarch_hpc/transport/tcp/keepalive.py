"""Notices cut wires: connections on which the other machine's kernel says nothing any more.

TCP by itself never notices while nobody sends, and takes a quarter of an hour when somebody does. Processes are not
judged here: a kernel acknowledges for one that computes, is stopped, or has not read for an hour.

An idle connection is probed by the kernel (keepalive). One with data under way is not, so its acknowledgements are
looked at. TCP_USER_TIMEOUT would do that too, but also ends connections whose receiver only does not read. To such a
one a cut wire shows late, since the kernel probes it ever less often, down to once in two minutes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.timer import Timer

__all__ = ["CutDetector"]

_NUM_PROBES = 4
"""Probes without an answer before an idle connection is cut; one lost packet says nothing."""

# Of the kernel's struct tcp_info, which only ever grows at its end: tcpi_probes, tcpi_unacked, tcpi_last_data_sent and
# tcpi_last_ack_recv.
_TCP_INFO = struct.Struct("@3xB20xI16xI8xI")


class CutDetector:
    """The wires under one process's connections. For the driver of the engine.

    Args:
        cut_s: longest silence of the other kernel; in the last fifth of it a wire may be cut already.
    """

    def __init__(self, engine: Engine, cut_s: float) -> None:
        self._engine = engine
        self._cut_s = cut_s
        self._period_s = max(1, round(cut_s / (_NUM_PROBES + 1)))  # the kernel counts in whole seconds
        self._watched: dict[object, _WatchedSocket] = {}
        self._timer: Timer | None = None

    def watch(self, key: object, sock: socket.socket, cut: Callable[[str], None]) -> None:
        """Tell *cut* why when the wire under *sock* is cut while data is under way; else reading fails.

        Until `forget`. Others than TCP sockets, such as a relay's, are ignored.
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
        """Look no more at one; unknown ones are ignored."""
        self._watched.pop(key, None)

    def close(self) -> None:
        """Look no more at any."""
        if self._timer is not None:
            self._timer.cancel()
        self._watched.clear()

    def _check(self) -> None:
        self._timer = self._engine.call_later(self._period_s, self._check) if self._watched else None
        for entry in list(self._watched.values()):
            try:
                silent_s = entry.silent_s()
            except OSError:
                continue  # it ends; whoever reads it says why
            if silent_s and silent_s >= self._cut_s - self._period_s:
                entry.cut(f"its machine has not acknowledged anything for {silent_s:.1f} s: the network between is cut")


class _WatchedSocket:
    """One connection, looked at from time to time."""

    __slots__ = ("_owed", "_sock", "cut")

    def __init__(self, sock: socket.socket, cut: Callable[[str], None]) -> None:
        self.cut = cut
        self._sock = sock
        self._owed = False

    def silent_s(self) -> float:
        """For how long the other kernel has owed an answer; 0 if it does not, or did not at the last look."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        num_probes, num_unacknowledged, sent_ms, heard_ms = _TCP_INFO.unpack(info)
        # To a receiver that does not read, the kernel repeats things ever less often: each time it answers, and the
        # silence in between says nothing. That an answer is still on its way may also just happen, but not twice.
        owed, self._owed = self._owed, num_probes > 1 or (num_unacknowledged > 0 and sent_ms < heard_ms)
        return float(heard_ms) / 1000 if owed and self._owed else 0.0
