"""Reports the fabrics of the channels between a program and its procs to the head, for `status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.transport.api import FrameChannel

__all__ = ["LinkReport", "summarize"]

_SETTLE_S = 0.5
"""Delay after a change: two sides that can use UCX have usually agreed on it by then. Nothing waits for this report."""

_MAX_CHECKS = 20
"""Limit of further checks while a channel still negotiates its fabric: UCX starts within a second, or not at all."""

_UNSETTLED = f"the two sides had not connected a faster one after {_MAX_CHECKS * _SETTLE_S:g} s"

Links = list[dict[str, object]]


def summarize(procs: Iterable[ProcRef], channels: Mapping[int, FrameChannel]) -> Links:
    """Return host, fabric, reason and number of procs, see `RunLinks`; procs without a channel are not counted."""
    counts: Counter[tuple[int, str, str]] = Counter()
    for proc in procs:
        channel = channels.get(proc.incarnation)
        if channel is not None:
            counts[proc.host_rank, channel.fabric, channel.why] += 1
    return [
        {"host": host, "fabric": fabric, "why": why, "procs": count}
        for (host, fabric, why), count in sorted(counts.items())
    ]


class LinkReport:
    """Sends one report after a burst of changes, not one for each proc; for the driver of the engine.

    Args:
        later: schedules a callback after a number of seconds.
        summarize: returns the links as they are.
        send: sends a report to the head.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], object],
        summarize: Callable[[], Links],
        send: Callable[[Links], None],
    ) -> None:
        self._later = later
        self._summarize = summarize
        self._send = send
        self._sent: Links = []
        self._checks_left = 0
        self._waiting = False

    def changed(self) -> None:
        """Schedule a report: a proc was reached, or is gone."""
        self._checks_left = _MAX_CHECKS
        self._wait()

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._later(_SETTLE_S, self._report)

    def _report(self) -> None:
        self._waiting = False
        self._checks_left -= 1
        links = self._summarize()
        if self._checks_left <= 0:
            links = [{**link, "why": link["why"] or _UNSETTLED} for link in links]
        if links != self._sent:
            self._sent = links
            self._send(links)
        if self._checks_left > 0 and not all(link["why"] for link in links):
            self._wait()
