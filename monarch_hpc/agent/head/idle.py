"""Ends an allocation that no run and no program has used for a while, so that forgotten hosts go back to others.

The head does this by itself: on the login side nothing of ours may be alive any more.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.head.deadline import Later
from monarch_hpc.agent.head.head import Head
from monarch_hpc.allocation.files import write_released
from monarch_hpc.config import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.text.units import format_duration

__all__ = ["IDLE_NOTICE_S", "IdleRelease", "IdleTime", "watch_idle"]

IDLE_NOTICE_S = 60.0
"""Time between the notice of a release and the release; at most half of the limit."""

_TICK_S = 5.0
"""Interval of looks at what is in use; shorter than anyone notices beside a limit of minutes."""

_CANCEL_S = 30.0
"""Time that scancel may take; a busy slurmctld answers in less."""

_log = Logger(__name__)


@dataclass(slots=True)
class IdleTime:
    """The time for which an allocation has not been used; a pure state machine, asked at each tick.

    Attributes:
        limit_s: the allowed time.
        idle_s: the time so far.
        told: whether the notice was given in this idle time.
    """

    limit_s: float
    idle_s: float = 0.0
    told: bool = False

    @property
    def left_s(self) -> float:
        """Time until the release, if nothing uses the allocation."""
        return max(0.0, self.limit_s - self.idle_s)

    @property
    def notice_s(self) -> float:
        """Time between the notice and the release."""
        return min(IDLE_NOTICE_S, self.limit_s / 2)

    def pass_time(self, elapsed_s: float, *, used: bool) -> bool:
        """Count the time since the last tick; return whether the limit is reached.

        Args:
            elapsed_s: time since the last tick.
            used: whether the allocation is in use, or was used since then.
        """
        if used:
            self.idle_s, self.told = 0.0, False
            return False
        if self.told or self.left_s - elapsed_s > self.notice_s:
            self.idle_s += elapsed_s
        else:
            # However long this tick took: the notice comes before the end, by its full time.
            self.idle_s, self.told = self.limit_s - self.notice_s, True
        return self.left_s <= 0


class IdleRelease:
    """Watches one head, and ends its allocation and Slurm job when the limit is reached.

    Args:
        limit_s: the allowed time without a run and without a program.
        later: runs a callback after a delay in seconds.
        release: writes down why, and shuts the head down.
        cancel: starts scancel for the job.
    """

    def __init__(
        self,
        head: Head,
        limit_s: float,
        clock: Callable[[], float],
        later: Later,
        release: Callable[[str], None],
        cancel: Callable[[], subprocess.Popen[bytes]],
    ) -> None:
        self.time = IdleTime(limit_s)
        self._head = head
        self._clock = clock
        self._later = later
        self._release = release
        self._cancel = cancel
        self._tick_s = min(_TICK_S, self.time.notice_s / 4)
        self._num_uses = head.state.num_attached
        self._last_s = clock()
        self._over = False
        later(self._tick_s, self._tick)

    def _tick(self) -> None:
        if self._over or self._head.state.shutting_down is not None:
            return
        # The number of requests for runs tells of those, too, that began and ended between two ticks.
        now_s, num_uses = self._clock(), self._head.state.num_attached
        # A job that Slurm suspends for an hour has not been idle for an hour: its users could not use it.
        elapsed_s = min(now_s - self._last_s, 2 * self._tick_s)
        used = self._in_use() or num_uses != self._num_uses
        self._last_s, self._num_uses = now_s, num_uses
        was_told = self.time.told
        self._over = self.time.pass_time(elapsed_s, used=used)
        self._head.idle_left_s = -1.0 if used else self.time.left_s
        if self.time.told and not was_told:
            left = format_duration(self.time.left_s)
            _log.warning("no run and no program uses this allocation: it is released in %s unless one does", left)
        if self._over:
            why = f"no run and no program for {format_duration(self.time.limit_s)} (config key 'slurm.idle_min')"
            _log.warning("this allocation is released: %s", why)
            self._release(why)
            return
        self._later(self._tick_s, self._tick)

    def _in_use(self) -> bool:
        """Tell whether agents are awaited, a run is open or a program is connected; asking for the status is no use."""
        state = self._head.state
        awaited = not state.past_deadline and bool(state.roster.missing())
        return awaited or bool(state.runs) or self._head.num_programs > 0

    def finish(self) -> None:
        """Cancel the job if hosts were lost, for whose tasks srun would wait; call when all other agents have ended."""
        state = self._head.state
        if not self._over or all(state.left.get(slot.entry.name) == 0 for slot in state.roster.all()):
            return
        try:
            self._cancel().wait(_CANCEL_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.error("cannot cancel the job, whose step waits for lost hosts: %s", error)


def watch_idle(
    head: Head, config: Config, args: AgentArgs, later: Later, clock: Callable[[], float]
) -> IdleRelease | None:
    """Watch the head of an allocation that is a Slurm job; None if it may be idle for as long as it likes."""
    limit_s = config.slurm.idle_min * 60
    if args.job_id is None or not args.owns_job or not limit_s:
        return None
    from monarch_hpc.slurm.commands.argv import release_argv, scrubbed  # not needed on laptops

    job_id = args.job_id

    def release(why: str) -> None:
        try:
            write_released(args.folder, why)
        except OSError as error:
            _log.error("cannot write down why the allocation ends: %s", error)
        head.shut_down(config.procs.stop_s, None)

    def cancel() -> subprocess.Popen[bytes]:
        return launch(release_argv(job_id), scrubbed(args.environment), stdin=subprocess.DEVNULL, new_session=True)

    return IdleRelease(head, limit_s, clock, later, release, cancel)
