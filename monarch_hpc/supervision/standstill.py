"""Judges when a process that a signal has stopped becomes suspect, then lost.

The evidence is the process state in the kernel, never silence: a process that computes with the interpreter's lock held
answers no messages, and is well.
"""

from __future__ import annotations

from monarch_hpc.supervision.liveness import Lease, Liveness

__all__ = ["STOPPED", "Standstill"]

STOPPED = "T"
"""State letter of a stopped process in ``/proc/PID/stat``. A traced process is in ``t``, which does not count."""


class Standstill:
    """One watched process, sampled periodically.

    Args:
        lease: how long it may be stopped.
        step_s: sampling interval. A late sample means that the watcher itself was stopped or starved, as when a whole
            job is suspended; it may be resumed before the watched process, so the missed time does not count.
        now_s: the current time, in seconds of any monotonic clock.
    """

    def __init__(self, lease: Lease, step_s: float, now_s: float) -> None:
        self._lease = lease
        self._step_s = step_s
        self._ran_s = self._seen_s = now_s
        self._liveness = Liveness.ALIVE

    def see(self, state: str, now_s: float) -> tuple[Liveness, float]:
        """Add a sample of the kernel's *state* letter; return the liveness and the stopped time in seconds.

        If the process has just been resumed, the time is the length of the standstill that has ended.
        """
        late_s = now_s - self._seen_s - self._step_s
        if late_s > self._step_s:
            self._ran_s = min(self._ran_s + late_s, now_s)
        stood_s = now_s - self._ran_s
        self._seen_s = now_s
        if state != STOPPED:
            self._ran_s = now_s
        self._liveness = self._lease.next_state(self._liveness, self._ran_s, now_s)
        return self._liveness, stood_s
