"""Places, order and ends of jobs: whole lists of actions, at times that the tests choose."""

from __future__ import annotations

import signal

import pytest

from monarch_hpc.submitit.scheduler import (
    AGAIN_S,
    Action,
    Changed,
    HostSpace,
    Scheduler,
    SignalTasks,
    StartTasks,
    TaskEnd,
)
from monarch_hpc.submitit.submission import StateChange
from tests.unit.submitit.makers import submission

GRACE_S = 10.0


def scheduler(num_hosts: int = 2, num_cpus: int = 2, num_gpus: int = 0) -> Scheduler:
    """Hosts n0, n1, ... with equal parts."""
    return Scheduler(
        {
            rank: HostSpace(f"n{rank}", f"n{rank}.net", num_cpus, [str(gpu) for gpu in range(num_gpus)], 8)
            for rank in range(num_hosts)
        },
        GRACE_S,
    )


def started(actions: list[Action]) -> list[tuple[str, int, int]]:
    """Submission, number and first host of the jobs that start."""
    return [(*action.job, action.host) for action in actions if isinstance(action, StartTasks)]


def states(actions: list[Action]) -> list[tuple[str, int, str]]:
    """Submission, number and state of the jobs that change."""
    return [(*action.job, action.change.state) for action in actions if isinstance(action, Changed)]


def ok(rank: int = 0) -> TaskEnd:
    return TaskEnd(rank, "", result=True)


def test_a_job_of_several_hosts_from_start_to_end() -> None:
    plan = scheduler(num_gpus=2)
    job = ("a", 0)
    assert plan.submit(submission("a", num_hosts=2, tasks_per_host=2, gpus_per_host=1), 0.0) == [
        Changed(job, StateChange(0, "RUNNING", hosts=("n0", "n1"))),
        StartTasks(job, 0, (0, 1), ("0",), ("n0.net", "n1.net")),
        StartTasks(job, 1, (2, 3), ("0",), ("n0.net", "n1.net")),
    ]
    assert [plan.task_ended(job, ok(rank), 1.0) for rank in (3, 0, 1)] == [[], [], []]
    assert plan.task_ended(job, ok(2), 1.0) == [Changed(job, StateChange(0, "COMPLETED", results=(0, 1, 2, 3)))]
    assert plan.task_ended(job, ok(2), 1.0) == [] and plan.idle


def test_one_task_that_fails_fails_the_job_and_the_others_go_on() -> None:
    plan = scheduler()
    plan.submit(submission("a", tasks_per_host=2), 0.0)
    assert plan.task_ended(("a", 0), TaskEnd(1, "signal 9 (SIGKILL)"), 1.0) == []
    assert plan.task_ended(("a", 0), ok(0), 2.0) == [
        Changed(("a", 0), StateChange(0, "FAILED", "signal 9 (SIGKILL)", results=(0,)))
    ]


def test_jobs_spread_and_wait_in_the_order_of_submission() -> None:
    plan = scheduler()
    assert started(plan.submit(submission("a", num_jobs=5), 0.0)) == [
        ("a", 0, 0),
        ("a", 1, 1),
        ("a", 2, 0),
        ("a", 3, 1),
    ]
    assert plan.submit(submission("both", num_hosts=2, tasks_per_host=2), 0.0) == []
    assert plan.submit(submission("small"), 0.0) == []
    assert started(plan.task_ended(("a", 0), ok(), 1.0)) == [("a", 4, 0)]
    for index in (1, 2, 3):
        assert started(plan.task_ended(("a", index), ok(), 1.0)) == []  # held for both hosts
    assert started(plan.task_ended(("a", 4), ok(), 1.0)) == [("both", 0, 0), ("both", 0, 1)]
    for rank in (0, 1, 2):
        plan.task_ended(("both", 0), ok(rank), 1.0)
    assert started(plan.task_ended(("both", 0), ok(3), 1.0)) == [("small", 0, 0)]


def test_an_array_at_its_parallelism_lets_others_pass() -> None:
    plan = scheduler()
    assert started(plan.submit(submission("a", num_jobs=3, parallelism=1), 0.0)) == [("a", 0, 0)]
    assert started(plan.submit(submission("b"), 0.0)) == [("b", 0, 1)]
    assert started(plan.task_ended(("a", 0), ok(), 1.0)) == [("a", 1, 0)]


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({"num_hosts": 3}, "needs 3 hosts with 1 CPUs, 0 GPUs each; the allocation has 2 such hosts of 2"),
        ({"tasks_per_host": 2, "cpus_per_task": 2}, "4 CPUs"),
        ({"gpus_per_host": 1}, "1 GPUs"),
        ({"memory_bytes": 9}, "0 such hosts of 2"),
    ],
)
def test_what_can_never_run_is_refused(fields: dict[str, int], known: str) -> None:
    plan = scheduler()
    assert plan.misfit(submission("a")) == ""
    assert known in plan.misfit(submission("a", **fields))


def test_memory_and_gpus_are_not_given_twice() -> None:
    plan = scheduler(num_hosts=1, num_cpus=4, num_gpus=3)
    first, second = (plan.submit(submission(name, gpus_per_host=1, memory_bytes=4), 0.0)[1] for name in "ab")
    assert isinstance(first, StartTasks) and isinstance(second, StartTasks)
    assert (first.gpus, second.gpus) == (("0",), ("1",))
    assert plan.submit(submission("c", memory_bytes=1), 0.0) == []
    assert started(plan.task_ended(("a", 0), ok(), 1.0)) == [("c", 0, 0)]


def test_a_job_without_an_end_is_killed_again_until_it_has_one() -> None:
    plan = scheduler()
    plan.submit(submission("a", timeout_s=100.0, notice_s=0.0), 0.0)
    kill = [SignalTasks(("a", 0), 0, signal.SIGKILL, group=True)]
    assert plan.tick(100.0)[-1:] == kill
    for number in (1, 2):
        assert plan.next_s == 100.0 + number * AGAIN_S and plan.tick(plan.next_s) == kill
    (ended,) = plan.task_ended(("a", 0), TaskEnd(0, "the process that starts the tasks has ended"), 121.0)
    assert isinstance(ended, Changed) and ended.change.state == "TIMEOUT"
    assert plan.tick(130.0) == [] and plan.next_s is None


def test_a_job_gets_notice_and_is_killed_at_its_time_limit() -> None:
    plan = scheduler()
    plan.submit(submission("a", timeout_s=100.0, notice_s=30.0), 1000.0)
    assert plan.next_s == 1070.0 and plan.tick(1069.0) == []
    assert plan.tick(1070.0) == [SignalTasks(("a", 0), 0, signal.SIGUSR2, group=False)]
    assert plan.tick(1100.0) == [SignalTasks(("a", 0), 0, signal.SIGKILL, group=True)]
    assert plan.task_ended(("a", 0), TaskEnd(0, "signal 9 (SIGKILL)"), 1101.0) == [
        Changed(("a", 0), StateChange(0, "TIMEOUT", "its time limit of 1.66667 min is over"))
    ]


def test_a_job_with_a_checkpoint_starts_again_with_new_time() -> None:
    plan = scheduler()
    plan.submit(submission("a", tasks_per_host=2, timeout_s=100.0, notice_s=10.0), 0.0)
    assert plan.task_ended(("a", 0), TaskEnd(0, "exit code 255", requeue=True), 50.0) == [
        SignalTasks(("a", 0), 0, signal.SIGKILL, group=True)
    ]
    actions = plan.task_ended(("a", 0), TaskEnd(1, "signal 9 (SIGKILL)"), 51.0)
    assert states(actions) == [("a", 0, "PENDING"), ("a", 0, "RUNNING")] and started(actions) == [("a", 0, 0)]
    assert plan.tick(100.0) == []  # the first start's limit
    assert plan.tick(151.0)[-1] == SignalTasks(("a", 0), 0, signal.SIGKILL, group=True)


def test_cancel_asks_and_then_kills() -> None:
    plan = scheduler(num_hosts=1, num_cpus=1)
    plan.submit(submission("a", num_jobs=2), 0.0)
    assert states(plan.cancel(("a", 1), 1.0)) == [("a", 1, "CANCELLED")]
    assert plan.cancel(("a", 0), 1.0) == [SignalTasks(("a", 0), 0, signal.SIGTERM, group=True)]
    assert plan.tick(1.0 + GRACE_S) == [SignalTasks(("a", 0), 0, signal.SIGKILL, group=True)]
    # Whatever it says at its end, nobody wants it to go on.
    assert states(plan.task_ended(("a", 0), TaskEnd(0, "exit code 255", requeue=True), 12.0)) == [("a", 0, "CANCELLED")]
    assert plan.cancel(("a", 0), 13.0) == [] and plan.idle


def test_signals_reach_running_jobs_alone() -> None:
    plan = scheduler(num_hosts=1, num_cpus=1)
    plan.submit(submission("a", num_jobs=2), 0.0)
    assert plan.signal(("a", 0), signal.SIGUSR2) == [SignalTasks(("a", 0), 0, signal.SIGUSR2, group=False)]
    assert plan.signal(("a", 1), signal.SIGUSR2) == [] == plan.signal(("b", 0), signal.SIGUSR2)


def test_a_lost_host_ends_its_jobs_and_those_that_cannot_run_without_it() -> None:
    plan = scheduler()
    plan.submit(submission("both", num_hosts=2), 0.0)
    plan.submit(submission("one", num_jobs=3), 0.0)
    plan.submit(submission("again", num_hosts=2, tasks_per_host=2), 0.0)
    actions = plan.host_lost(1, 1.0)
    assert ("again", 0, "NODE_FAIL") in states(actions) and ("one", 1, "NODE_FAIL") in states(actions)
    assert SignalTasks(("both", 0), 0, signal.SIGKILL, group=True) in actions
    assert states(plan.task_ended(("both", 0), TaskEnd(0, "signal 9 (SIGKILL)"), 2.0)) == [
        ("both", 0, "NODE_FAIL"),
        ("one", 2, "RUNNING"),
    ]
    assert plan.host_lost(1, 3.0) == []
    assert "of 1 " in plan.misfit(submission("both", num_hosts=2))
    plan.submit(submission("full", tasks_per_host=2), 3.0)
    assert started(plan.host_back(1, HostSpace("n1", "n1.net", 2, [], 8), 4.0)) == [("full", 0, 1)]
    assert plan.misfit(submission("both", num_hosts=2)) == ""


def test_all_are_abandoned_at_once() -> None:
    plan = scheduler(num_hosts=1, num_cpus=1)
    plan.submit(submission("a", num_jobs=2), 0.0)
    assert states(plan.abandon("the end")) == [("a", 0, "CANCELLED"), ("a", 1, "CANCELLED")]
    assert plan.idle and plan.task_ended(("a", 0), ok(), 1.0) == []


@pytest.mark.slow  # ten thousand of them
def test_ten_thousand_jobs_take_one_pass() -> None:
    plan = scheduler(num_hosts=4, num_cpus=8)
    running = [(name, index) for name, index, _ in started(plan.submit(submission("a", num_jobs=10_000), 0.0))]
    assert len(running) == 32
    ended = 0
    while running:
        actions = plan.task_ended(running.pop(), ok(), 1.0)
        running += [(name, index) for name, index, _ in started(actions)]
        ended += sum(state == "COMPLETED" for _, _, state in states(actions))
    assert ended == 10_000 and plan.idle
