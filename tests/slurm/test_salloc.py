"""An allocation that salloc holds, for queues that take no batch job: it is used and ends as any other."""

from __future__ import annotations

import contextlib
import json
import os
import signal

from monarch_hpc.testing import wait_until
from tests.guards.tree import ROOT
from tests.slurm.commands import Alice, alice, argv, count_calls, kill_all_on_login, wait_until_left

__all__ = ["alice"]

HELLO = str(ROOT / "examples" / "hello_mesh.py")
TWO = ("alloc", "dev", "--salloc", "-N", "2", "-w", "n[1-2]", "-t", "30", "--gpus-per-node", "2")


def command_lines(alice: Alice, host: str) -> list[str]:
    return [command for _, command in alice.lab.processes("alice", host)]


def test_hosts_are_held_used_and_given_back(alice: Alice) -> None:
    count = count_calls(alice, "sbatch", "salloc")
    done = alice.run(*TWO)
    assert done.returncode == 0, done.stderr
    assert "salloc    it needs this login node until its agents are ready" in done.stderr
    assert [line.split()[0] for line in count.read_text().splitlines()] == ["salloc"]
    done = alice.run("run", "-a", "dev", HELLO)
    assert done.returncode == 0, done.stderr
    assert "{'hosts': 1/2, 'gpus': 1/2} hello, world, from n2" in done.stdout
    (shown,) = alice.status("dev")
    assert isinstance(shown["hosts"], list)
    # All cores of each host, of which this machine may have fewer, and the GPUs that were asked for.
    num_cpus = min(8, len(os.sched_getaffinity(0)))
    granted = [(host["name"], host["cpus"], host["gpus"]) for host in shown["hosts"]]
    assert granted == [("n1", num_cpus, ["0", "1"]), ("n2", num_cpus, ["0", "1"])]
    done = alice.run("release", "dev")
    assert done.returncode == 0 and "no process left on 2 host(s)" in done.stdout, done.stderr
    assert alice.jobs() == {}
    wait_until_left(alice, "login", "n1", "n2")


def test_it_lives_on_when_everything_on_the_login_node_is_killed_and_its_head_gives_it_back(alice: Alice) -> None:
    # Half a minute, in which a busy machine has to start the program; less may be over before that.
    done = alice.run(*TWO, env={"MONARCH_HPC_SLURM__IDLE_MIN": "0.5"})
    assert done.returncode == 0, done.stderr
    kill_all_on_login(alice)
    done = alice.run("run", "-a", "dev", HELLO)
    assert done.returncode == 0, (done.stderr, alice.status())
    wait_until("its release", alice.jobs, 180.0, accept=lambda jobs: not jobs)
    wait_until_left(alice, "n1", "n2")
    wait_until(
        "its end",
        lambda: [json.loads(path.read_text()) for path in alice.state.glob("*/ended.json")] or alice.status(),
        accept=lambda ended: "no run and no program" in str(ended),
    )


def test_agents_outlive_an_srun_that_was_told_to_end_or_end_in_order(alice: Alice) -> None:
    """The step of the script dies with it; what it had started on the hosts does not, and is given back by the head.

    Where the signal is faster than the end of the step, it reaches the agents, which then end the allocation.
    """
    assert alice.run(*TWO).returncode == 0
    holders = [pid for pid, command in alice.lab.processes("alice") if command.startswith("srun ")]
    for pid in holders:  # one of them ends with the other
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_until("the end of srun", lambda: command_lines(alice, "login"), accept=lambda left: not left)
    wait_until("the end of its script", lambda: not any("job.sh" in line for line in command_lines(alice, "n1")))
    done = alice.run("run", "-a", "dev", HELLO)
    if done.returncode == 0:
        done = alice.run("release", "dev")
        assert done.returncode == 0, done.stderr
        assert alice.jobs() == {}
    else:
        assert done.returncode == 72 and "its Slurm job has ended" in done.stderr, done.stderr
        wait_until("the end of its job", alice.jobs, accept=lambda jobs: not jobs)
    wait_until_left(alice, "login", "n1", "n2")


def test_while_it_waits_it_is_shown_and_cancelled_like_a_batch_job(alice: Alice) -> None:
    alice.fill()
    waiting = alice.start(*TWO)
    wait_until("its job", alice.jobs, accept=lambda jobs: len(jobs) == 2)
    (shown,) = wait_until("its number", alice.status, accept=lambda found: found[0]["job_id"])
    assert str(shown["state"]).startswith("queued")
    waiting.signal_group(signal.SIGINT)
    _, err = waiting.communicate(timeout=180)
    assert waiting.returncode == 130 and "nothing is left" in err, err
    assert alice.jobs() == {"filler": "RUNNING"}
    # One that nobody waits for begins by itself.
    assert alice.run(*TWO, "--bg").returncode == 0
    alice.free()
    wait_until("its agents", lambda: alice.status("dev"), 90.0, accept=lambda found: found[0]["state"] == "ready")
    assert alice.run("release", "dev").returncode == 0
    wait_until_left(alice, "login", "n1", "n2")


def test_a_refusal_is_slurms_own_words_and_leaves_nothing(alice: Alice) -> None:
    done = alice.run(*TWO, "-p", "nowhere")
    assert done.returncode == 71
    assert "invalid partition specified: nowhere" in done.stderr and "there are: debug" in done.stderr, done.stderr
    done = alice.run("alloc", "dev", "--salloc", "-N", "1", ":", "-N", "1")
    assert done.returncode == 65 and "takes one group of hosts" in done.stderr, done.stderr
    assert alice.status() == [] and alice.jobs() == {}
    done = alice.lab.run(argv(*TWO, "--dry-run"), env=alice.environment({}))
    assert "salloc --no-shell" in done.stdout and "# ---- job.sh, which it starts ----" in done.stdout
    assert "--signal" not in done.stdout.split("# ----")[0] and "requeue" not in done.stdout.split("# ----")[0]
