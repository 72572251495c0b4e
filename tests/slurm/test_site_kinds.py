"""Sites whose homes, accounting and compute nodes differ: an allocation works there, or says what to change."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from typing import Literal

import pytest

from monarch_hpc.testing import wait_until
from tests.guards.tree import ROOT
from tests.slurm.commands import Alice, alice, argv, put_on_path, release, write

__all__ = ["alice"]

HELLO = (ROOT / "examples" / "hello_mesh.py").read_text()
TWO = ("alloc", "dev", "-N", "2", "-w", "n[1-2]", "-t", "10")


@pytest.mark.parametrize("access", ["ro", "none"])
def test_where_hosts_have_no_home_to_write_another_folder_does(alice: Alice, access: Literal["ro", "none"]) -> None:
    alice.lab.set_home(access)
    # As a profile knows it, before anything is asked of Slurm.
    done = alice.run(*TWO, env={"MONARCH_HPC_PATHS__HOME_ON_COMPUTE": access})
    assert done.returncode == 65 and "set it to a folder that login and compute nodes can write" in done.stderr
    assert alice.jobs() == {}
    # As it shows where no profile knows it.
    done = alice.run(*TWO, env={"MONARCH_HPC_SLURM__BOOTSTRAP_S": "20"})
    assert done.returncode in (71, 72, 73) and "config key paths.shared" in done.stderr, done.stderr
    assert alice.jobs() == {}
    scratch = alice.lab.scratch()
    alice.env["MONARCH_HPC_PATHS__SHARED"] = str(scratch / "shared")
    done = alice.run(*TWO, env={"MONARCH_HPC_PATHS__HOME_ON_COMPUTE": access})
    assert done.returncode == 0, done.stderr
    program = scratch / "hello.py"
    alice.lab.run(["sh", "-c", f"cat > {program}"], stdin=HELLO, check=True)
    for place in ("here", "host0"):
        command = [sys.executable, "-m", "monarch_hpc.cli", "run", "-a", "dev", "--on", place, str(program)]
        done = alice.lab.run(command, env=alice.environment({}), folder=scratch, timeout_s=180)
        assert done.returncode == 0, done.stderr
        assert "hello, world, from n2" in done.stdout
    release(alice)


ON_HOST0 = ("run", "-a", "dev", "--on", "host0", "--", sys.executable, "-m", "monarch_hpc.cli")


def test_where_compute_nodes_may_not_ask_for_jobs_a_client_submits_those_of_a_program_there(alice: Alice) -> None:
    """The lab's Slurm takes jobs from everywhere, so that an `sbatch` before it notes where it runs."""
    alice.env["MONARCH_HPC_LOGIN__SUBMIT_FROM_COMPUTE"] = "false"
    places = alice.folder / "places"
    put_on_path(alice, {"sbatch": f'#!/bin/sh\nuname -n >> {places}\nexec /usr/bin/sbatch "$@"\n'})
    assert alice.run(*TWO).returncode == 0
    done = alice.run(*ON_HOST0, "alloc", "more", "-N", "1", "-t", "5")
    assert done.returncode == 0, done.stderr
    assert len(alice.jobs()) == 2
    script = write(alice, "x.py", "import os; print('job', os.environ['SLURM_JOB_ID'], os.environ['COLOUR'])")
    command = argv(*ON_HOST0, "sbatch", "-N", "1", "-t", "5", script)
    done = alice.lab.run(command, env=alice.environment({"COLOUR": "blue"}), folder=alice.folder, timeout_s=180.0)
    assert done.returncode == 0, done.stderr
    assert set(places.read_text().split()) == {"login"}
    assert len(places.read_text().split()) == 3
    found = wait_until(
        "the job's output",
        lambda: "".join(path.read_text() for path in alice.folder.glob("x-*.out")),
        120.0,
        accept=lambda text: "job" in text,
    )
    assert re.search(r"^job \d+ blue$", found, re.MULTILINE), found
    wait_until("the end of the batch job", lambda: len(alice.jobs()) == 2)
    release(alice)


def test_where_compute_nodes_may_not_ask_for_jobs_a_program_without_a_client_is_told_so(alice: Alice) -> None:
    alice.env["MONARCH_HPC_LOGIN__SUBMIT_FROM_COMPUTE"] = "false"
    assert alice.run(*TWO).returncode == 0
    jobs = alice.jobs()
    for words in (("alloc", "more", "-N", "1"), ("sbatch", "-N", "1", write(alice, "x.py", ""))):
        done = alice.run("run", "--detach", *ON_HOST0[1:], *words)
        assert done.returncode == 0, done.stderr
        run = re.findall(r"run ([0-9a-f]{12})", done.stdout + done.stderr)[0]
        wait_until("its end", partial(ended, alice, run), 120.0)
        done = alice.run("attach", run)
        assert done.returncode == 65, (done.stdout, done.stderr)
        said = done.stdout + done.stderr
        assert re.search(r"is on compute node n\d, from which slurmlab takes no jobs", said), said
        assert "'monarch-hpc attach RUN'): no client is attached that could submit it" in said
    assert alice.jobs() == jobs
    release(alice)


def ended(alice: Alice, run: str) -> bool:
    """Whether a run's program has ended; asking makes no client."""
    return any(alice.shared.glob(f"*/runs/{run}/exit.json"))


def test_what_slurm_has_forgotten_the_accounting_database_knows(alice: Alice) -> None:
    """The lab has no database: this sacct answers as recorded ones do, of a job that scontrol has forgotten."""
    assert alice.run(*TWO).returncode == 0
    (name,) = alice.jobs()
    (job,) = (str(one["job_id"]) for one in alice.status())
    alice.slurm("scancel", job)
    wait_until("its end", alice.jobs, accept=lambda jobs: not jobs)
    said = f"{job}|CANCELLED by 47001|0:15|2026-10-30T05:18:05|2026-10-30T05:48:05|2|n[1-2]|{name}"
    forget = (
        "#!/bin/sh\ncase $* in *show*job*) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;; esac\n"
    )
    put_on_path(
        alice,
        {"scontrol": forget + 'exec /usr/bin/scontrol "$@"\n', "sacct": f"#!/bin/sh\necho '{said}'\n"},
    )
    wait_until("an answer of squeue from after its end", alice.status, 60.0, accept=lambda shown: not shown)
    (ended,) = (json.loads(path.read_text()) for path in alice.state.glob("*/ended.json"))
    assert (ended["state"], ended["source"]) == ("CANCELLED by 47001", "sacct")
