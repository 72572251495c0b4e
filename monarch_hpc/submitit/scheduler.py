"""Decides which job starts on which hosts, and when it is warned and ended; pure: time and events are arguments.

Jobs start in the order of their submission; one that does not fit yet holds up those behind it, so that none waits
for ever. Only arrays that have as many jobs running as they may are passed over.
"""

from __future__ import annotations

import heapq
import signal
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.submitit.submission import StateChange, Submission

__all__ = [
    "AGAIN_S",
    "Action",
    "Changed",
    "HostSpace",
    "Job",
    "JobKey",
    "Scheduler",
    "SignalTasks",
    "StartTasks",
    "TaskEnd",
]

JobKey = tuple[str, int]
"""A submission, and the number of a job in it."""

NOTICE = signal.SIGUSR2
"""Submitit's signal: the job checkpoints itself. NCCL has USR1."""

AGAIN_S = 10.0
"""Time between two SIGKILLs of a job whose tasks have no end yet; a fork server reports one in milliseconds."""


@dataclass(slots=True)
class HostSpace:
    """What of a host is free.

    Attributes:
        name: its name.
        network_name: the name by which tasks on other hosts reach it.
        num_cpus: free processors.
        gpus: free GPUs, as the variables for programs name them.
        memory_bytes: free memory.
    """

    name: str
    network_name: str
    num_cpus: int
    gpus: list[str]
    memory_bytes: int

    def fits(self, submission: Submission) -> bool:
        """Whether there is room for one job's part on this host."""
        return (
            self.num_cpus >= submission.tasks_per_host * submission.cpus_per_task
            and len(self.gpus) >= submission.gpus_per_host
            and self.memory_bytes >= submission.memory_bytes
        )

    def take(self, submission: Submission) -> tuple[str, ...]:
        """Reserve that room; return the GPUs."""
        self.num_cpus -= submission.tasks_per_host * submission.cpus_per_task
        self.memory_bytes -= submission.memory_bytes
        gpus = tuple(self.gpus[: submission.gpus_per_host])
        del self.gpus[: submission.gpus_per_host]
        return gpus

    def free(self, submission: Submission, gpus: Iterable[str]) -> None:
        """Give back what `take` has reserved."""
        self.num_cpus += submission.tasks_per_host * submission.cpus_per_task
        self.memory_bytes += submission.memory_bytes
        self.gpus.extend(gpus)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of a task.

    Attributes:
        rank: its rank in the job.
        words: how it ended; empty for exit code 0.
        result: whether it has left a result.
        requeue: whether it has saved a checkpoint, and asks to be started again.
    """

    rank: int
    words: str
    result: bool = False
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Start the tasks of a job on one host: *ranks*, with these GPUs; *hosts* are all network names of the job."""

    job: JobKey
    host: int
    ranks: tuple[int, ...]
    gpus: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SignalTasks:
    """Send a signal to all tasks of a job on one host; with *group* also to the processes that they have started."""

    job: JobKey
    host: int
    number: int
    group: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """A job's state has changed."""

    job: JobKey
    change: StateChange


Action = StartTasks | SignalTasks | Changed


@dataclass(slots=True, eq=False)
class Job:
    """A job that has not ended.

    Attributes:
        places: hosts and their GPUs for it, in the order of ranks; empty while it waits.
        left: ranks that run.
        ends: ends of the other ranks.
        starts: number of starts so far, by which timers of earlier ones are known.
        verdict: state and reason that it will have, whatever its tasks' ends; None if they decide.
    """

    submission: Submission
    index: int
    places: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    ends: list[TaskEnd] = field(default_factory=list)
    starts: int = 0
    verdict: tuple[str, str] | None = None
    requeue: bool = False

    @property
    def key(self) -> JobKey:
        """Its name here."""
        return self.submission.id, self.index


class _Array:
    """The jobs of a submission that wait, and the numbers of those that run and of those that have not ended."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.waiting: deque[Job] = deque(Job(submission, index) for index in submission.indices)
        self.num_running = 0
        self.num_left = len(self.waiting)


class Scheduler:
    """The jobs and the hosts of one allocation. Each method returns what is to be done, in order.

    Args:
        hosts: what is free on each host, by rank.
        grace_s: time between SIGTERM and SIGKILL of cancelled jobs, in seconds.
    """

    def __init__(self, hosts: Mapping[int, HostSpace], grace_s: float) -> None:
        self._hosts = dict(hosts)
        self._whole = {rank: replace(host, gpus=list(host.gpus)) for rank, host in hosts.items()}
        self._grace_s = grace_s
        self._arrays: dict[str, _Array] = {}
        self._jobs: dict[JobKey, Job] = {}
        self._timers: list[tuple[float, int, JobKey, int, str]] = []
        self._num_timers = 0

    @property
    def idle(self) -> bool:
        """Whether there is no job."""
        return not self._jobs

    @property
    def next_s(self) -> float | None:
        """When `tick` must be called; None if no time is known."""
        return self._timers[0][0] if self._timers else None

    def knows(self, job: JobKey) -> bool:
        """Whether a job waits or runs."""
        return job in self._jobs

    def misfit(self, submission: Submission) -> str:
        """Why the jobs of a submission can never run on the hosts that there are; empty if they can."""
        num_fitting = sum(host.fits(submission) for host in self._whole.values())
        if num_fitting >= submission.num_hosts:
            return ""
        sizes = {(host.num_cpus, len(host.gpus), host.memory_bytes) for host in self._whole.values()}
        known = "; ".join(f"{cpus} CPUs, {gpus} GPUs, {memory / 1e9:.1f} GB" for cpus, gpus, memory in sorted(sizes))
        memory = f", {submission.memory_bytes / 1e9:.1f} GB" if submission.memory_bytes else ""
        cpus = submission.tasks_per_host * submission.cpus_per_task
        return (
            f"a job needs {submission.num_hosts} hosts with {cpus} CPUs, {submission.gpus_per_host} GPUs{memory} each; "
            f"the allocation has {num_fitting} such hosts of {len(self._whole)} (its hosts have {known or 'nothing'})"
        )

    # ---- events ----

    def submit(self, submission: Submission, now_s: float) -> list[Action]:
        """Take a new submission that fits, see `misfit`."""
        array = self._arrays[submission.id] = _Array(submission)
        self._jobs.update({job.key: job for job in array.waiting})
        return self._place(now_s)

    def cancel(self, key: JobKey, now_s: float) -> list[Action]:
        """End a job; no-op if it has ended."""
        job = self._jobs.get(key)
        if job is None:
            return []
        job.verdict = job.verdict or ("CANCELLED", "it was cancelled")
        if not job.places:
            self._arrays[key[0]].waiting.remove(job)
            return [*self._end(job), *self._place(now_s)]
        self._after(now_s + self._grace_s, job, "kill")
        return self._signal(job, signal.SIGTERM, group=True)

    def signal(self, key: JobKey, number: int) -> list[Action]:
        """Send the tasks of a job a signal; no-op if it does not run."""
        job = self._jobs.get(key)
        return self._signal(job, number, group=False) if job is not None and job.places else []

    def task_ended(self, key: JobKey, end: TaskEnd, now_s: float) -> list[Action]:
        """Record the end of a task."""
        job = self._jobs.get(key)
        if job is None or end.rank not in job.left:
            return []
        job.left.remove(end.rank)
        job.ends.append(end)
        actions: list[Action] = []
        if end.requeue and job.verdict is None:
            job.requeue = True
            actions = self._signal(job, signal.SIGKILL, group=True)
        return [*actions, *self._settle(job, now_s)]

    def host_lost(self, host: int, now_s: float) -> list[Action]:
        """A host, or what runs tasks there, is gone with all its tasks."""
        space = self._hosts.pop(host, None)
        self._whole.pop(host, None)
        if space is None:
            return []
        actions: list[Action] = []
        for job in list(self._jobs.values()):
            ranks = self._ranks_on(job, host)
            if ranks:
                job.verdict = job.verdict or ("NODE_FAIL", f"host {space.name} was lost")
                job.left.difference_update(ranks)
                actions += self._signal(job, signal.SIGKILL, group=True)
                actions += self._settle(job, now_s)
        for array in list(self._arrays.values()):
            problem = self.misfit(array.submission)
            while problem and array.waiting:
                job = array.waiting.popleft()
                job.verdict = ("NODE_FAIL", f"host {space.name} was lost: {problem}")
                actions += self._end(job)
        return [*actions, *self._place(now_s)]

    def host_back(self, host: int, space: HostSpace, now_s: float) -> list[Action]:
        """A lost host can have tasks again."""
        self._hosts[host] = space
        self._whole[host] = replace(space, gpus=list(space.gpus))
        return self._place(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Warn and end jobs whose time has come."""
        actions: list[Action] = []
        while self._timers and self._timers[0][0] <= now_s:
            _, _, key, starts, what = heapq.heappop(self._timers)
            job = self._jobs.get(key)
            if job is None or job.starts != starts or not job.places:
                continue
            match what:
                case "notice":
                    actions += self._signal(job, NOTICE, group=False)
                case "timeout":
                    limit = f"{job.submission.timeout_s / 60:g} min"
                    job.verdict = job.verdict or ("TIMEOUT", f"its time limit of {limit} is over")
                    actions += self._kill(job, now_s)
                case _:
                    actions += self._kill(job, now_s)
        return actions

    def abandon(self, why: str) -> list[Action]:
        """All jobs end now, without their tasks' ends."""
        actions: list[Action] = []
        for job in list(self._jobs.values()):
            job.verdict = job.verdict or ("CANCELLED", why)
            actions += self._end(job)
        return actions

    # ---- placing ----

    def _place(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for array in list(self._arrays.values()):
            while array.waiting and array.num_running < array.submission.parallelism:
                found = self._find(array.submission)
                if not found:
                    return actions
                actions += self._start(array, array.waiting.popleft(), found, now_s)
        return actions

    def _find(self, submission: Submission) -> list[int]:
        """Hosts for a job; empty if there are not enough now."""
        free = (rank for rank, host in self._hosts.items() if host.fits(submission))
        # Where most processors are free, so that jobs spread; ranks in order, so that neighbours are neighbours.
        best = sorted(free, key=lambda rank: (-self._hosts[rank].num_cpus, rank))[: submission.num_hosts]
        return sorted(best) if len(best) == submission.num_hosts else []

    def _start(self, array: _Array, job: Job, hosts: Iterable[int], now_s: float) -> list[Action]:
        submission = job.submission
        array.num_running += 1
        job.starts += 1
        job.places = [(rank, self._hosts[rank].take(submission)) for rank in hosts]
        names = tuple(self._hosts[rank].name for rank, _ in job.places)
        network = tuple(self._hosts[rank].network_name for rank, _ in job.places)
        job.left = set(range(submission.num_hosts * submission.tasks_per_host))
        self._after(now_s + max(0.0, submission.timeout_s - submission.notice_s), job, "notice")
        self._after(now_s + submission.timeout_s, job, "timeout")
        starts = [
            StartTasks(job.key, rank, tuple(self._ranks_on(job, rank)), gpus, network) for rank, gpus in job.places
        ]
        return [Changed(job.key, StateChange(job.index, "RUNNING", hosts=names)), *starts]

    def _settle(self, job: Job, now_s: float) -> list[Action]:
        """End a job that has no task left, or let it wait again."""
        if job.left or not job.places:
            return []
        array = self._arrays[job.key[0]]
        array.num_running -= 1
        for rank, gpus in job.places:
            if rank in self._hosts:
                self._hosts[rank].free(job.submission, gpus)
        job.places = []
        if job.requeue and job.verdict is None:
            job.requeue, job.ends = False, []
            array.waiting.append(job)
            return [Changed(job.key, StateChange(job.index, "PENDING", "it goes on later")), *self._place(now_s)]
        return [*self._end(job), *self._place(now_s)]

    def _end(self, job: Job) -> list[Action]:
        del self._jobs[job.key]
        array = self._arrays[job.key[0]]
        array.num_left -= 1
        if not array.num_left:
            del self._arrays[job.key[0]]
        failed = next((end for end in job.ends if end.words), None)
        state, why = job.verdict or (("FAILED", failed.words) if failed is not None else ("COMPLETED", ""))
        results = tuple(sorted(end.rank for end in job.ends if end.result))
        return [Changed(job.key, StateChange(job.index, state, why, results=results))]

    # ---- small parts ----

    def _ranks_on(self, job: Job, host: int) -> range:
        per_host = job.submission.tasks_per_host
        for at, (rank, _) in enumerate(job.places):
            if rank == host:
                return range(at * per_host, (at + 1) * per_host)
        return range(0)

    def _signal(self, job: Job, number: int, *, group: bool) -> list[Action]:
        return [
            SignalTasks(job.key, rank, number, group)
            for rank, _ in job.places
            if rank in self._hosts and job.left.intersection(self._ranks_on(job, rank))
        ]

    def _kill(self, job: Job, now_s: float) -> list[Action]:
        """Kill what is left of a job, again and again until it has ended: only the second one ends its fork server."""
        self._after(now_s + AGAIN_S, job, "kill")
        return self._signal(job, signal.SIGKILL, group=True)

    def _after(self, at_s: float, job: Job, what: str) -> None:
        self._num_timers += 1
        heapq.heappush(self._timers, (at_s, self._num_timers, job.key, job.starts, what))
