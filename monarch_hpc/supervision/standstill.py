"""When a process that a signal has stopped counts as suspect, and when as lost.

Only the kernel's word counts, never silence: a process that computes with the interpreter's lock held answers
nobody and is well.
"""

from __future__ import annotations

from monarch_hpc.supervision.lease import Lease, Liveness

__all__ = ["STOPPED", "Standstill"]

STOPPED = "T"
"""State of a stopped process in ``/proc/PID/stat``. One that a debugger holds is in ``t``: somebody looks after it."""


class Standstill:
    """One process, seen from time to time.

    Args:
        lease: how long it may be stopped.
        step_s: how often it is seen. Who comes later was stopped or starved himself, as when a whole job is suspended,
            and may wake up before those he watches: the time that he missed does not count.
        now_s: seconds of any clock that never goes back.
    """

    def __init__(self, lease: Lease, step_s: float, now_s: float) -> None:
        self._lease = lease
        self._step_s = step_s
        self._ran_s = self._seen_s = now_s
        self._life = Liveness.ALIVE

    def see(self, state: str, now_s: float) -> tuple[Liveness, float]:
        """Take note of the kernel's *state* letter; return what it makes of the process, and how long it has stood.

        The length is that of the standstill that ends now, where one ends.
        """
        late_s = now_s - self._seen_s - self._step_s
        if late_s > self._step_s:
            self._ran_s = min(self._ran_s + late_s, now_s)
        stood_s = now_s - self._ran_s
        self._seen_s = now_s
        if state != STOPPED:
            self._ran_s = now_s
        self._life = self._lease.judge(self._life, self._ran_s, now_s)
        return self._life, stood_s
