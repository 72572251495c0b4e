"""States of jobs as clients see them: from the service's files and, if it is gone, from its end. Never from Slurm."""

from __future__ import annotations

from pathlib import Path

from submitit.core.core import InfoWatcher

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.errors import AllocationError, ConfigError, MonarchError
from monarch_hpc.submitit.submission import (
    StateChange,
    Submission,
    order_path,
    read_states,
    read_submission,
    states_path,
)

__all__ = ["StateWatcher"]

_FINAL = {"CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT"}

_ASK_S = 1.0
"""Time between questions whether a service still runs; they cost nothing while this process is connected."""

_MOST_S = 60.0
"""The same where the head cannot be reached: it doubles up to this, since Slurm is asked, too."""


class _Tracked:
    """A submission that jobs of this process belong to."""

    def __init__(self, place: Path, submission: str) -> None:
        self.place = place
        self.id = submission
        self.offset = 0
        self.changes: dict[int, StateChange] = {}
        self.submission: Submission | None = None
        self.ask_at_s = 0.0
        self.wait_s = _ASK_S
        self.gone = ""

    def read(self) -> None:
        """Read what the service has written since the last time."""
        changes, self.offset = read_states(states_path(self.place, self.id), self.offset)
        self.changes.update({change.index: change for change in changes})

    def change(self, index: int) -> StateChange:
        """The state of a job."""
        known = self.changes.get(index)
        if self.gone and (known is None or known.state not in _FINAL):
            return StateChange(index, "NODE_FAIL", self.gone)
        if known is not None:
            return known
        return StateChange(index, "PENDING" if self.order() is not None else "UNKNOWN")

    def order(self) -> Submission | None:
        """The submission's order; None if there is none here."""
        if self.submission is None:
            try:
                self.submission = read_submission(order_path(self.place, self.id))
            except FileNotFoundError:
                return None
        return self.submission


class StateWatcher(InfoWatcher):
    """The states of all jobs of this process, by job id."""

    def __init__(self) -> None:
        super().__init__()
        self._tracked: dict[str, _Tracked] = {}

    def follow(self, job_id: str, place: Path) -> None:
        """Follow a job whose submission has its files in *place*."""
        submission = job_id.split("_")[0]
        if submission not in self._tracked:
            self._tracked[submission] = _Tracked(place, submission)

    def clear(self) -> None:
        """Read everything again."""
        self._tracked = {name: _Tracked(one.place, one.id) for name, one in self._tracked.items()}

    def order(self, job_id: str) -> Submission:
        """The order of a job's submission.

        Raises:
            AllocationError: there is none in the job's folder.
        """
        tracked = self._tracked[job_id.split("_")[0]]
        order = tracked.order()
        if order is None:
            raise AllocationError("any", f"job {job_id} was not submitted with the folder {tracked.place}")
        return order

    def change(self, job_id: str, mode: str = "standard") -> StateChange:
        """The last change of a job's state; what is known already if *mode* is ``cache``."""
        name, _, index = job_id.partition("_")
        tracked = self._tracked[name]
        at = int(index or 0)
        known = tracked.changes.get(at)
        if mode != "cache" and not tracked.gone and (known is None or known.state not in _FINAL):
            tracked.read()
            if tracked.change(at).state not in _FINAL:
                _look_for_end(tracked, force=mode == "force")
        return tracked.change(at)

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """The state of a job, with Slurm's names."""
        change = self.change(job_id, mode)
        return {
            "JobID": job_id,
            "State": change.state,
            "NodeList": ",".join(change.hosts),
            "Reason": change.why,
        }

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """The state of a job, as Slurm would call it."""
        return self.change(job_id, mode).state

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether a job has ended."""
        return self.change(job_id, mode).state in _FINAL

    def update(self) -> None:
        """Do nothing: jobs are looked up one by one, which costs one read of a file."""


def _look_for_end(tracked: _Tracked, *, force: bool) -> None:
    """Find out, now and then, whether the service is gone; if so, its jobs have ended."""
    now_s = monotonic()
    order = tracked.order()
    if order is None or (now_s < tracked.ask_at_s and not force):
        return
    tracked.ask_at_s = now_s + tracked.wait_s
    why = _why_gone(order, tracked)
    if why:
        tracked.read()  # the last that it wrote
        tracked.gone = why


def _why_gone(order: Submission, tracked: _Tracked) -> str:
    from monarch_hpc.submitit.link import link_to  # late: it loads the transport

    try:
        link = link_to(Path(order.directory), order.run)
    except (AllocationError, ConfigError) as error:
        return str(error)
    except MonarchError:
        tracked.wait_s = min(2 * tracked.wait_s, _MOST_S)
        return "its allocation has ended" if _has_ended(order.allocation) else ""
    tracked.wait_s = _ASK_S
    return "the service that ran it has ended" if link is None or link.ended else ""


def _has_ended(allocation: str) -> bool:
    """Whether Slurm says that an allocation has ended whose head does not answer."""
    from monarch_hpc.config.load import load
    from monarch_hpc.slurm import Allocations

    try:
        allocations = Allocations.open(load().config)
        allocations.reconcile()
        return allocations.find(allocation).ended is not None
    except MonarchError:
        return False
