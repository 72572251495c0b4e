"""Slurm's real refusals get advice that names the request and the change to make."""

from __future__ import annotations

import pytest

from monarch_hpc.slurm.commands.messages import (
    advice_for,
    explain_output,
    is_busy,
    is_gone,
    reason_in_words,
    refuses_for_now,
)
from tests.unit.slurm.records import FOLDER, answer


@pytest.mark.parametrize(
    ("name", "flags", "words"),
    [
        ("partition", {"partition": "nope"}, ("--partition=nope", "-p (there are: a, b)")),
        ("group", {"partition": "vip"}, ("--partition=vip", "not for you")),
        ("time", {"time": "10", "partition": "short"}, ("--time=10, --partition=short", "-t", "sinfo")),
        ("time-text", {"time": "bad"}, ("--time=bad", "-t")),
        ("nodes", {"nodes": "9"}, ("--nodes=9", "-N")),
        ("constraint", {"constraint": "fast"}, ("--constraint=fast", "-C")),
        ("reservation", {"reservation": "nope"}, ("--reservation=nope", "there are: a, b")),
        ("nodelist", {"nodelist": "n9"}, ("--nodelist=n9", "-w")),
        ("gpus", {"gpus-per-node": "9"}, ("--gpus-per-node=9", "sinfo")),
        ("gres", {"gres": "gpu:a100:1"}, ("--gres=gpu:a100:1", "sinfo")),
        ("option", {"bogus": ""}, ("--slurm",)),
        ("no-cluster", {}, ("SLURM_CONF", "run --local 2")),
    ],
)
def test_a_recorded_refusal_gets_advice(name: str, flags: dict[str, str], words: tuple[str, ...]) -> None:
    advice = advice_for(answer(f"refused-{name}"), {"exclusive": "", **flags}, ["a", "b"])
    assert [word for word in words if word not in advice] == [], advice


def test_every_recorded_refusal_gets_advice_and_is_an_answer() -> None:
    refusals = [path.stem for path in FOLDER.glob("refused-*.txt")]
    assert len(refusals) >= 11
    assert [name for name in refusals if not advice_for(answer(name), {}) or is_busy(answer(name))] == []


# A Slurm without a database cannot produce these: they are taken from slurm_errno.c.
@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("Invalid account or account/partition combination specified", "-A"),
        ("Invalid qos specification", "-q"),
        (
            "AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
            "-A",
        ),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "limit of the account",
        ),
    ],
)
def test_refusals_of_a_database_get_advice(words: str, advice: str) -> None:
    assert advice in advice_for(f"sbatch: error: Batch job submission failed: {words}\n", {"account": "x"})


# From src/srun, slurmstepd/req.c and slurm_errno.c: texts as users see them, of 22.05 and later releases.
@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("srun: error: Unable to create step for job 7: Memory required by task is not available", "--mem=0"),
        ("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", "--overlap"),
        ("srun: Job 7 step creation still disabled, retrying (Requested nodes are busy)", "--overlap"),
        ("srun: error: Unable to create step for job 7: Requested nodes are busy", "--overlap"),
        ("srun: error: Unable to create step for job 7: Job credential revoked", "had ended"),
        ("srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure", "-x"),
        ("srun: error: Node failure on n2", "a host failed"),
        ("srun: error: Unable to create step for job 7: Step limit reached for this job", "no more steps"),
        ("srun: error: Invalid MPI plugin name", "procs.mpi"),
        ("srun: error: MPI plugin's pre-launch setup failed", "srun --mpi=list"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T12:00:00 DUE TO TIME LIMIT ***", "-t"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T12:00:00 DUE TO PREEMPTION ***", "priority"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T12:00:00 DUE TO JOB REQUEUE ***", "queue"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T12:00:00 DUE TO NODE FAILURE ***", "--no-kill"),
        (
            "slurmstepd: error: Detected 2 oom_kill event(s) in StepId=7.0. Some of the step tasks have been OOM Kill",
            "/dev/shm",
        ),
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been",
            "/dev/shm",
        ),
        ("slurmstepd: error: *** JOB 7 ON n1 UNCORRECTABLE MEMORY ERROR AT 2026-11-22T12:00:00 ***", "help desk"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T12:00:00 DUE TO TASK FAILURE ***", "above"),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", "scancel"),
        ("srun: error: Job allocation 7 has been revoked", "status"),
        ("salloc: error: InactiveLimit reached", "InactiveLimit"),
        ("srun: error: Unable to create step for job 7: Error configuring interconnect", "job_vni"),
        ("srun: fatal: cpus-per-task set by two different environment variables SLURM_CPUS_PER_TASK=1", "unset both"),
        ("Access denied by pam_slurm_adopt: you have no active jobs on this node", "srun --overlap"),
    ],
)
def test_messages_in_the_output_of_jobs_and_steps_get_the_next_step(words: str, advice: str) -> None:
    assert advice in explain_output(f"n1: before\n{words}\n")


def test_other_output_gets_no_explanation() -> None:
    assert explain_output("step 3: loss 0.5\n") == ""


def test_an_unknown_refusal_gets_none() -> None:
    assert advice_for("sbatch: error: the moon is full", {"partition": "x"}) == ""


@pytest.mark.parametrize("command", ["sbatch", "squeue", "scancel", "scontrol"])
def test_a_dead_slurmctld_is_busy_and_no_job_is_gone(command: str) -> None:
    text = answer(f"busy-{command}")
    assert is_busy(text)
    assert not is_gone(text)


@pytest.mark.parametrize(
    ("words", "for_now"),
    [
        ("srun: error: Unable to create step for job 1: Memory required by task is not available", True),
        ("srun: error: Unable to create step for job 1: Requested nodes are busy", True),
        ("srun: error: Unable to confirm allocation for job 1: Unable to contact slurm controller", True),
        ("srun: error: Unable to create step for job 1: Job/step already completing or completed", False),
        ("srun: error: Unable to create step for job 1: Step limit reached for this job", False),
        ("bash: agent.sh: No such file or directory", False),
    ],
)
def test_a_step_that_is_refused_for_now_may_start_later(words: str, for_now: bool) -> None:
    assert refuses_for_now(words) is for_now


def test_a_job_that_slurm_forgot_is_gone() -> None:
    assert is_gone(answer("scontrol-show-job-unknown"))
    assert not is_busy(answer("scontrol-show-job-unknown"))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "Priority: jobs of higher priority are ahead"),
        ("ReqNodeNotAvail, UnavailableNodes:n3", "down, drained or reserved"),
        ("ReqNodeNotAvail, Reserved for maintenance", "maintenance window"),
        ("QOSMaxJobsPerUserLimit", "release another allocation"),
        ("DependencyNeverSatisfied", "can no longer happen"),
        ("job requeued in held state", "scontrol release"),
    ],
)
def test_a_reason_is_put_in_words(reason: str, words: str) -> None:
    assert reason_in_words(reason).startswith(f"{reason}: ")
    assert words in reason_in_words(reason)


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    assert reason_in_words("SolarFlare") == "SolarFlare"
