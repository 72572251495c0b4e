"""What carries the frames between a program and its procs, told to the head so that `status` can show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.transport.api import FrameChannel

__all__ = ["LinkReport", "summarize"]

_SETTLE_S = 0.5
"""After a proc was reached: two sides that can use UCX have agreed on it by then, mostly; nobody waits for this."""

_MAX_LOOKS = 20
"""How often to look again while two sides still talk: UCX starts in a second, or never."""

Links = list[dict[str, object]]


def summarize(procs: Iterable[ProcRef], channels: Mapping[int, FrameChannel]) -> Links:
    """Return host, fabric, reason and number of procs, see `RunLinks`; procs that cannot be reached do not count."""
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
    """Tells once after every change, not for each proc; for the driver of the engine.

    Args:
        later: runs a callback in so many seconds.
        look: returns what there is.
        tell: passes it to the head.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], object],
        look: Callable[[], Links],
        tell: Callable[[Links], None],
    ) -> None:
        self._later = later
        self._look = look
        self._tell = tell
        self._told: Links = []
        self._looks_left = 0
        self._waiting = False

    def changed(self) -> None:
        """A proc was reached, or is gone."""
        self._looks_left = _MAX_LOOKS
        self._wait()

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._later(_SETTLE_S, self._report)

    def _report(self) -> None:
        self._waiting = False
        self._looks_left -= 1
        links = self._look()
        if links != self._told:
            self._told = links
            self._tell(links)
        if self._looks_left > 0 and not all(link["why"] for link in links):
            self._wait()
