"""The limit on requests to Slurm for hosts in place of lost ones. Pure: the caller reads the clock and the records.

Tools that answered a hiccup of the scheduler with one request after the other have flooded queues, and their users were
banned. So the number of requests is limited over all programs of an allocation, and a failure stops them.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.text.units import format_duration

__all__ = ["Replacement", "ReplacementLimit"]

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Replacement:
    """An earlier request for hosts in place of lost ones.

    Args:
        begun_s: time of the request, by the clock of the `ReplacementLimit`'s caller.
        pending: whether its hosts have not joined yet, and may do so.
        problem: why it failed before its hosts had joined; empty if it did not. One that a program gave up, because
            it did not wait any longer, has not failed.
    """

    begun_s: float
    pending: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ReplacementLimit:
    """Limits on the requests of an allocation, see config keys `heal.max_pending` and `heal.per_hour`."""

    max_pending: int
    per_hour: int

    def refusal(self, earlier: Sequence[Replacement], now_s: float, silence: str = "") -> str:
        """Return why no hosts may be requested now; empty if they may.

        Args:
            earlier: the requests of the allocation so far, in any order.
            now_s: the same clock, now.
            silence: why Slurm does not answer; empty if it does.
        """
        if silence:
            return f"Slurm does not answer: {silence}"
        # A request from the future was made before somebody set the clock back: it counts.
        recent = sorted((one for one in earlier if now_s - one.begun_s < _HOUR_S), key=lambda one: one.begun_s)
        num_pending = sum(one.pending for one in earlier)
        if num_pending >= self.max_pending:
            return f"{num_pending} requests are pending (config key heal.max_pending)"
        if len(recent) >= self.per_hour:
            return f"{len(recent)} requests were made within an hour (config key heal.per_hour)"
        settled = [one for one in recent if not one.pending]
        if settled and settled[-1].problem:
            left_s = min(settled[-1].begun_s + _HOUR_S - now_s, _HOUR_S)
            return f"the last request failed, and none is made for {format_duration(left_s)}: {settled[-1].problem}"
        return ""
