"""The life of an allocation: requested, pending, ready, released; and the messages to the user if it fails."""

from __future__ import annotations

import json
import re
import signal
import stat
import sys
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, wait_until_left, write
from tests.system.support.programs import read_until

__all__ = ["alice"]

HOSTS = ("n1", "n2", "n3", "n4")


def has(text: str, *words: str) -> None:
    assert [word for word in words if word not in text] == [], text


# ---- from nothing to ready and back


def test_four_hosts_are_taken_used_and_given_back(alice: Alice) -> None:
    done = alice.run("alloc", "dev", "-N", "4", "-t", "30", "--gpus-per-node", "2", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["allocation"]
    assert (made["name"], made["state"]) == ("dev", "ready")
    assert [host["name"] for host in made["hosts"]] == list(HOSTS)
    # A whole host has all of its GPUs, however few were requested; the agents' step requested the granted ones.
    assert [host["gpus"] for host in made["hosts"]] == [4, 4, 4, 4]
    has(done.stderr, f"job {made['job_id']}", "granted   n[1-4] until ", "agents    4/4 in ", "run -a dev SCRIPT")

    steps = alice.slurm("squeue", "--me", "-h", "-s", "-o", "%j %N").split("\n")
    assert [step for step in steps if step.startswith("agents")] == ["agents n[1-4]"]
    (shown,) = alice.status("dev")
    assert (shown["state"], shown["live"], shown["slurm_state"]) == ("ready", True, "RUNNING")
    has(alice.run("status").stdout, "ALLOC", "dev", "ready", "4/4")

    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    has(done.stdout, "no process left on 4 host(s)", f"job {made['job_id']} is gone from the queue")
    assert alice.jobs() == {}
    wait_until_left(alice, "login", *HOSTS)
    assert not (Path(made["directory"]) / "key").exists()
    assert alice.status() == []
    assert alice.status("dev")[0]["live"] is False
    assert alice.run("alloc", "dev", "--bg").returncode == 0


@pytest.mark.parametrize(("flags", "num_gpus"), [((), 0), (("--gpus-per-node", "2"), 2)])
def test_a_shared_host_gives_the_gpus_that_were_asked_for(alice: Alice, flags: tuple[str, ...], num_gpus: int) -> None:
    done = alice.run("alloc", *flags, "--json", env={"MONARCH_HPC_SLURM__JOB_FLAGS": "{exclusive: null}"})
    assert done.returncode == 0, done.stderr
    assert [host["gpus"] for host in json.loads(done.stdout)["allocation"]["hosts"]] == [num_gpus]


def test_nothing_of_it_is_open_to_others(alice: Alice) -> None:
    assert alice.run("alloc", "-N", "1").returncode == 0
    found = [path for root in (alice.state, alice.shared) for path in (root, *root.rglob("*")) if not path.is_symlink()]
    assert len(found) > 10
    assert [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_the_key_is_in_no_command_line_environment_script_or_log(alice: Alice) -> None:
    done = alice.run("alloc", "-N", "2", "--json")
    assert done.returncode == 0, done.stderr
    hosts = [host["name"] for host in json.loads(done.stdout)["allocation"]["hosts"]]
    (key_file,) = alice.shared.glob("*/key")
    key = key_file.read_bytes()
    canaries = (key, key.hex().encode(), key[:8])
    texts = {path: path.read_bytes() for path in key_file.parent.rglob("*") if path.is_file() and path != key_file}
    texts |= {path: path.read_bytes() for path in alice.state.rglob("*.json")}
    texts[Path("scontrol")] = alice.slurm("scontrol", "show", "job", "-d").encode()
    for host in ("login", *hosts):
        for pid, _ in alice.lab.processes("alice", host):
            for name in ("cmdline", "environ"):
                texts[Path(f"/proc/{pid}/{name}")] = Path(f"/proc/{pid}/{name}").read_bytes()
    assert len(texts) > 20
    assert [path for path, text in texts.items() for canary in canaries if canary in text] == []


def test_a_dry_run_prints_what_is_submitted(alice: Alice) -> None:
    flags = ("dev", "-N", "2", "-C", "", "--slurm", "--comment=a $(b) 'c'", "--bg")
    dry = alice.run("alloc", *flags[:3], *flags[5:], "--dry-run")
    assert dry.returncode == 0 and not alice.state.exists() and not alice.shared.exists()
    alice.fill()
    assert alice.run("alloc", *flags[:3], *flags[5:]).returncode == 0
    (script,) = alice.shared.glob("*/job.sh")
    dry_id = dry.stdout.partition("--allocation ")[2][:32]
    real_id = script.read_text().partition("--allocation ")[2][:32]
    assert dry.stdout.replace(dry_id, real_id).replace(dry_id[:8], real_id[:8]) == script.read_text()
    has(alice.slurm("scontrol", "show", "job"), "Comment=a $(b) 'c'")


def test_hostile_names_of_folders_do_no_harm(alice: Alice) -> None:
    alice.env["MONARCH_HPC_PATHS__SHARED"] = f'{alice.folder}/a  b/$(touch pwned)/`x`/"q" it\'s #1/100%j'
    done = alice.run("alloc", "-N", "2")
    assert done.returncode == 0, done.stderr
    assert alice.run("release", "default").returncode == 0
    assert list(alice.lab.home().rglob("pwned")) == []


def test_it_is_the_same_from_within_a_job(alice: Alice) -> None:
    inherited = {
        "SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "2", "SLURM_NTASKS": "9", "SLURM_NNODES": "1", "SLURM_GPUS": "1",
        "SLURM_EXACT": "1", "SLURM_STEP_ID": "0", "SRUN_CPUS_PER_TASK": "2", "SBATCH_EXPORT": "NONE", "PMI_RANK": "3",
        "SQUEUE_FORMAT": "%i", "SBATCH_PARTITION": "low",
    }  # fmt: skip
    done = alice.run("alloc", "-N", "2", "--json", env=inherited)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["allocation"]["hosts"]) == 2
    # The partition is the user's choice, not the outer job's.
    assert alice.slurm("squeue", "--me", "-h", "-o", "%P").strip() == "low"


# ---- waiting


def test_in_the_background_it_waits_with_a_reason_and_its_name_is_taken(alice: Alice) -> None:
    alice.fill()
    done = alice.run("alloc", "dev", "-N", "2", "--bg")
    assert done.returncode == 0 and "submitted" in done.stdout, done.stderr
    (shown,) = alice.status()
    assert str(shown["state"]).startswith("queued: "), shown
    again = alice.run("alloc", "dev", "-N", "1")
    assert again.returncode == 72
    has(again.stderr, f"job {shown['job_id']}", "monarch-hpc run -a dev SCRIPT", "monarch-hpc release dev")
    alice.free()
    wait_until("ready", lambda: alice.status()[0]["state"], 60, accept=lambda state: state == "ready")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_queued_it_asks_nothing_and_leaves_nothing(alice: Alice, number: signal.Signals) -> None:
    alice.fill()
    with alice.start("alloc", "-N", "2") as process:
        assert process.stderr is not None
        # Slurm may give another reason until its scheduler has looked at the job.
        said = read_until(process.stderr, "waiting for hosts to become free")
        has(said.splitlines()[-1], "queued    ")
        process.signal_group(number)
        _, rest = process.communicate(timeout=180)
    assert process.returncode == 128 + number, rest
    has(rest, "is gone from the queue", "nothing is left")
    assert alice.jobs() == {"filler": "RUNNING"}
    assert alice.status() == []


def test_a_lost_terminal_changes_nothing(alice: Alice) -> None:
    alice.fill()
    with alice.start("alloc", "-N", "2") as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=180)
    assert process.returncode == 0
    alice.free()
    wait_until("ready", lambda: alice.status()[0]["state"], 60, accept=lambda state: state == "ready")


def test_all_commands_share_one_squeue(alice: Alice) -> None:
    tools = alice.folder / "bin"
    script = f'#!/bin/sh\necho >> {alice.folder}/count\nexec /usr/bin/squeue "$@"\n'
    alice.lab.run(["sh", "-c", f'mkdir -p "{tools}"; cat > "{tools}/squeue"; chmod 755 "{tools}/squeue"'], stdin=script)
    path = alice.lab.run(["sh", "-c", "echo $PATH"]).stdout.strip()
    alice.env |= {
        "PATH": f"{tools}:{path}",
        "MONARCH_HPC_SLURM__POLL_MIN_S": "600",
        "MONARCH_HPC_SLURM__POLL_MAX_S": "600",
    }
    alice.fill()
    assert alice.run("alloc", "a", "--bg").returncode == 0
    assert alice.run("alloc", "b", "--bg").returncode == 0
    count = alice.folder / "count"
    before = count.read_text().count("\n")
    for _ in range(5):
        assert len(alice.status()) == 2
    # The first command asks squeue, since the cached answer is older than the last job.
    assert count.read_text().count("\n") - before == 1


# ---- messages to the user


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-p", "nope"), ("Invalid partition name", "--partition=nope", "there are: debug, short, ")),
        (("-p", "vip"), ("User's group not permitted", "--partition=vip")),
        (("-p", "short", "-t", "10"), ("Requested time limit is invalid", "--time=10, --partition=short", "with -t")),
        (("-N", "9"), ("Node count specification invalid", "--nodes=9", "with -N")),
        (("-w", "n9"), ("Invalid node name", "--nodelist=n9", "-w or -x")),
        (("-C", "fast"), ("Invalid feature", "--constraint=fast", "with -C")),
        (("--gpus-per-node", "9"), ("node configuration is not available", "--gpus-per-node=9", "sinfo")),
        (("--slurm", "--bogus"), ("unrecognized option", "--slurm")),
    ],
)
def test_a_refusal_is_slurms_own_words_and_what_to_change(
    alice: Alice, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = alice.run("alloc", *flags)
    assert done.returncode == 71, done.stderr
    has(done.stderr, *words)
    assert alice.jobs() == {} and list(alice.shared.iterdir()) == [] and alice.status() == []
    has(str(alice.status("default")[0]["ended"]), "REFUSED")


def test_a_refused_account_says_so_wherever_it_came_from(alice: Alice) -> None:
    done = alice.run("alloc", "-p", "paid", env={"SBATCH_ACCOUNT": "art"})
    assert done.returncode == 71
    has(done.stderr, "Invalid account or account/partition combination", "--account=art, --partition=paid", "with -A")
    done = alice.run("alloc", "-p", "paid", "-A", "music", env={"SBATCH_ACCOUNT": "art"})
    has(done.stderr, "--account=music")


def test_without_slurm_there_is_a_sentence_and_the_files_still_speak(alice: Alice) -> None:
    alice.fill()
    assert alice.run("alloc", "dev", "--bg").returncode == 0
    done = alice.run("alloc", "other", env={"PATH": "/nowhere"})
    assert done.returncode == 69
    has(done.stderr, "no Slurm here: 'sbatch' is not on PATH", "--local 2")
    done = alice.run("status", env={"PATH": "/nowhere"})
    assert done.returncode == 0
    has(done.stdout, "dev", "submitted")
    has(done.stderr, "no Slurm here", "from files only")


def test_missing_agents_are_named_with_their_last_words_and_the_job_is_given_back(alice: Alice) -> None:
    python = alice.folder / "python"
    # A task that ends before srun has connected to its output makes srun end the whole step.
    wrapper = (
        '#!/bin/sh\nif [ "$(hostname)" = n2 ]; then sleep 1; echo no driver here >&2; exit 3; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    alice.lab.run(["sh", "-c", f"mkdir -p {alice.folder}; cat > {python}; chmod 755 {python}"], stdin=wrapper)
    done = alice.run(
        "alloc",
        "dev",
        "-w",
        "n[1-3]",
        "-N",
        "3",
        env={"MONARCH_HPC_AGENT__PYTHON": str(python), "MONARCH_HPC_SLURM__BOOTSTRAP_S": "30"},
    )
    assert done.returncode == 72
    has(done.stderr, "no agent from 1 host(s)", "  n2:", "    no driver here", "was released", "agents    2/3")
    assert alice.jobs() == {}
    assert alice.status() == []
    has(alice.run("logs", "dev").stdout, "no driver here")


def test_a_job_that_ends_early_says_why(alice: Alice) -> None:
    done = alice.run("alloc", "dev", env={"MONARCH_HPC_AGENT__PROLOGUE": '["echo no such module >&2", "exit 4"]'})
    assert done.returncode == 72
    has(done.stderr, "ended: FAILED", "exit code 4:0", "no such module")
    assert alice.jobs() == {} and alice.status() == []


def test_an_end_from_outside_is_noticed_and_told(alice: Alice) -> None:
    assert alice.run("alloc", "dev").returncode == 0
    alice.slurm("scancel", "--me")
    wait_until("an empty queue", alice.jobs, accept=lambda jobs: not jobs)
    shown = wait_until("the end", lambda: alice.status("dev")[0], accept=lambda found: not found["live"])
    has(str(shown["state"]), "ended: CANCELLED: it was cancelled")
    assert not (Path(str(shown["directory"])) / "key").exists()


def test_a_name_whose_job_has_just_ended_is_free(alice: Alice) -> None:
    assert alice.run("alloc", "dev").returncode == 0
    (shown,) = alice.status()  # whose answer of squeue is kept
    assert shown["live"]
    alice.slurm("scancel", "--me")
    wait_until("an empty queue", alice.jobs, accept=lambda jobs: not jobs)
    for_long = {"MONARCH_HPC_SLURM__POLL_MIN_S": "600", "MONARCH_HPC_SLURM__POLL_MAX_S": "600"}
    again = alice.run("alloc", "dev", "--bg", env=for_long)
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_a_dead_slurmctld_changes_nothing_and_is_told_what_it_missed(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "2").returncode == 0
    assert alice.run("alloc", "keep", "-N", "1").returncode == 0
    # A slurmctld that is killed within seconds of a job's submission forgets it.
    names = [str(found["job_name"]).encode() for found in alice.status()]
    saved = alice.lab.base / "state" / "job_state"
    wait_until(
        "the jobs to be saved",
        lambda: saved.read_bytes() if saved.exists() else b"",
        30,
        accept=lambda text: all(name in text for name in names),
    )
    # Slurm's commands give up after MessageTimeout.
    conf = alice.slurm("cat", "/etc/slurm/slurm.conf")
    hasty = write(alice, "slurm.conf", re.sub("^MessageTimeout=10$", "MessageTimeout=3", conf, flags=re.MULTILINE))
    alice.env["SLURM_CONF"] = hasty
    alice.lab.kill_slurmctld()
    done = alice.run("status", env={"MONARCH_HPC_SLURM__POLL_MIN_S": "0.001"})
    has(done.stdout, "dev", "keep", "ready")
    has(done.stderr, "slurmctld does not answer")
    done = alice.run("release", "dev", timeout_s=120)
    assert done.returncode == 69
    has(done.stderr, "slurmctld does not answer", "marked for release")
    alice.lab.start_slurmctld()
    left = wait_until(
        "the wish to be carried out",
        lambda: {str(found["name"]) for found in alice.status()},
        30,
        accept=lambda found: found == {"keep"},
    )
    assert left == {"keep"}
    wait_until("the job to go", alice.jobs, 60, accept=lambda jobs: len(jobs) == 1)


def test_all_are_released_at_once(alice: Alice) -> None:
    for name in ("a", "b"):
        assert alice.run("alloc", name, "--bg").returncode == 0
    done = alice.run("release", "--all", "--json")
    assert [found["name"] for found in json.loads(done.stdout)["released"]] == ["a", "b"]
    assert alice.jobs() == {} and alice.status() == []
    assert alice.run("release", "--all").returncode == 0
    done = alice.run("release", "a")
    assert done.returncode == 72
    has(done.stderr, "has ended already")


def test_a_script_written_by_hand_finds_agents_on_its_hosts(alice: Alice) -> None:
    program = alice.folder / "program.py"
    text = f"""
import os
from monarch_hpc.attach.head.orders import shut_down
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.slurm import open_inside

def end(directory):
    print(sorted(shut_down(directory, 2.0).items()))

config = load({{"paths.shared": {str(alice.shared)!r}}}).config
with open_inside(config, os.environ, end) as directory:
    print([(host["name"], len(host["gpus"])) for host in query_status(directory, 5.0)["hosts"]])
"""
    alice.lab.run(["sh", "-c", f"mkdir -p {alice.folder}; cat > {program}"], stdin=text)
    output = alice.folder / "output"
    command = f"srun -N1 -n1 hostname; {sys.executable} {program}; srun -N3 -n3 true"
    assert alice.batch("-wn[1-3]", "--exclusive", "-t5", "-o", str(output), "--wrap", command) == 0
    assert output.read_text().splitlines() == [
        "n1",
        "[('n1', 4), ('n2', 4), ('n3', 4)]",
        "[('n1', 0), ('n2', 0), ('n3', 0)]",
    ]


def test_the_accounting_database_tells_the_end_that_slurm_has_forgotten(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1").returncode == 0
    (shown,) = alice.status("dev")
    job = shown["job_id"]
    alice.slurm("scancel", str(job))
    wait_until("an empty queue", alice.jobs, 60, accept=lambda jobs: not jobs)
    tools = alice.folder / "bin"
    name = f"mh-{str(shown['id'])[:8]}"
    row = f"{job}|TIMEOUT|0:0|2026-10-30T05:18:05|2026-10-30T05:48:05|1|n1|{name}"
    for tool, script in (
        ("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"),
        ("sacct", f"echo '{row}'"),
    ):
        text = f"#!/bin/sh\n{script}\n"
        alice.lab.run(["sh", "-c", f"mkdir -p {tools}; cat > {tools}/{tool}; chmod 755 {tools}/{tool}"], stdin=text)
    path = alice.lab.run(["sh", "-c", "echo $PATH"]).stdout.strip()
    alice.env["PATH"] = f"{tools}:{path}"
    wait_until("an answer of squeue from after its end", alice.status, 60, accept=lambda shown: not shown)
    ended = alice.status("dev")[0]["ended"]
    has(str(ended), "TIMEOUT", "sacct", "the time limit was reached")
