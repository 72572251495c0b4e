"""The output of `doctor`, `report` and `cost` of a real allocation."""

from __future__ import annotations

import base64
import json
import sys
import tarfile
from pathlib import Path

from monarch_hpc.config.document import parse_document
from monarch_hpc.config.site import parse_profile
from tests.slurm.commands import Alice, alice, count_calls, held

__all__ = ["alice", "held"]

SECRET = "swordfish-in-the-environment"


def findings(text: str) -> dict[str, dict[str, str]]:
    return {finding["what"]: finding for finding in json.loads(text)["findings"]}


def test_login_node_and_host_see_themselves(alice: Alice) -> None:
    here = findings(alice.run("doctor", "--json").stdout)
    assert here["slurm"]["state"] == "ok"
    assert here["slurm"]["found"].startswith("slurm")
    assert here["configuration"]["found"].startswith("site profile slurmlab")
    assert here["profile"]["found"].startswith("slurmlab, checked 20")
    words = ("srun", "-Q", "-N1", "-n1", "-w", "n2", "-c1", sys.executable, "-m", "monarch_hpc.cli", "doctor", "--json")
    done = alice.lab.run(words, env=alice.environment({}), timeout_s=60.0)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    there = findings(done.stdout)
    assert there["interfaces"]["found"] != here["interfaces"]["found"]
    assert there["relay"]["state"] == "ok"


def test_hosts_of_an_allocation_are_asked_and_reach_back(held: Alice) -> None:
    done = held.run("doctor", "dev", "--json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = findings(done.stdout)
    assert found["hosts"]["found"] == "asked 4 of 4: n1, n2, n3, n4"
    for host in ("n1", "n4"):
        assert found[f"{host}: clock"]["state"] == "ok"
        assert found[f"{host}: way back"]["found"].startswith("reaches this machine at 10.177.0.1:")
    # Both sides run the same interpreter with the same packages.
    assert not [what for what in found if what.endswith((": python", ": package", ": cloudpickle"))]


def test_a_draft_of_the_profile_loads_and_takes_few_requests(alice: Alice) -> None:
    count = count_calls(alice, "sacct", "sacctmgr", "sbatch", "scontrol", "sinfo", "squeue", "srun")
    done = alice.run("doctor", "--write-profile", "-")
    assert done.returncode == 0, done.stderr
    assert 0 < len(count.read_text().splitlines()) <= 6, count.read_text()
    profile = parse_profile(parse_document(done.stdout, "draft.yaml"), "draft.yaml")
    assert (profile.name, profile.clusters) == ("slurmlab", ["slurmlab"])
    assert "# Jobs without -p go to debug." in done.stdout
    assert "  # partition short: MaxTime=" in done.stdout


def test_an_archive_for_the_help_desk_has_no_key_no_token_and_no_value_of_a_variable(held: Alice) -> None:
    path = held.folder / "report.tar.gz"
    config = held.folder / "config" / "monarch-hpc"
    text = 'agent: {prologue: ["export HF_TOKEN=swordfish-token"], env: {A_B: swordfish-env}}\n'
    held.lab.run(["sh", "-c", f'mkdir -p "{config}"; umask 077; cat > "{config}/config.yaml"'], stdin=text, check=True)
    more = {"MY_VALUE": SECRET, "MONARCH_HPC_SLURM__ACCOUNT": SECRET, "XDG_CONFIG_HOME": str(config.parent)}
    done = held.run("report", "dev", "--output", str(path), "--json", env=more)
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)["parts"]
    assert {"about.json", "configuration.txt", "allocation.json", "sbatch.txt", "slurm.out"} <= set(parts)
    assert path.stat().st_size <= 5_000_000 and path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        texts = {member.name.partition("/")[2]: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert set(texts) == set(parts)
    assert b"JobState=RUNNING" in texts["scontrol-show-job.txt"] and b"NodeName=n4" in texts["scontrol-show-node.txt"]
    (directory,) = (Path(str(one["directory"])) for one in held.status("dev"))
    key = (directory / "key").read_bytes()
    assert len(key) >= 32
    whole = b"\n".join(texts.values())
    for secret in (b"swordfish", SECRET.encode(), key, key.hex().encode(), base64.b64encode(key)):
        assert secret not in whole


def test_the_cost_of_an_allocation_is_hosts_times_hours(held: Alice) -> None:
    done = held.run("cost", "--json")
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["allocations"]
    assert (job["name"], job["num_hosts"], job["node_hours_at_end"], job["reservation"]) == ("dev", 4, 2.0, "")
    assert 0 < job["node_hours"] < 2 and 0 < job["left_s"] <= 1800
