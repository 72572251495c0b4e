"""Jobs that join a living allocation: their ranks, their request, their state, and what the census does about them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.allocation.ready import write_ready
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.storage.files import private_dir, write_json
from monarch_hpc.slurm.census import take_census
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.nodes.growth import claim_ranks, look_joined, plan_growth
from monarch_hpc.slurm.record import AllocationRecord, Ended, current_owner
from monarch_hpc.slurm.registry import Registry
from monarch_hpc.slurm.script import render_script
from tests.unit.slurm.makers import ready, record


@pytest.fixture
def home(tmp_path: Path) -> AllocationRecord:
    """An allocation of two hosts that is ready."""
    folder = tmp_path / "home" / "attempts" / "1"
    folder.mkdir(parents=True, mode=0o700)
    grant(folder, "n[1-2]")
    write_ready(folder, ready(["n1", "n2"]))
    return record(directory=tmp_path / "home", job_id=7)


def grant(folder: Path, hosts: str) -> None:
    private_dir(folder)
    write_json(folder / "granted.json", {"schema": 1, "job_id": 8, "nodelist": hosts, "restarts": 0, "time_s": 1000})


def joining(tmp_path: Path, **changes: object) -> AllocationRecord:
    made = AllocationRecord(
        "8" * 32, "dev", tmp_path / "88888888", "2", current_owner(), 2000.0, joins=record().allocation
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_ranks_are_claimed_once_and_follow_each_other(tmp_path: Path) -> None:
    assert claim_ranks(tmp_path, 2, 3, "a") == 2
    assert claim_ranks(tmp_path, 2, 1, "b") == 5
    assert claim_ranks(tmp_path, 2, 4, "c") == 6
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["2.json", "5.json", "6.json"]


def test_the_script_starts_agents_of_the_allocation_with_the_next_ranks(home: AllocationRecord) -> None:
    config, request = plan_growth(load().config, home, 2, options=("--exclude=n9", "--time=5"))
    script = render_script(config, request)
    assert "--exclude=n[1-2],n9" in script and "#SBATCH --time=5" in script and "#SBATCH --nodes=2" in script
    assert f"directory={request.directory}\nhome" not in script, "its own folder is not that of the allocation"
    assert f"\nhome={home.directory}\n" in script
    agent = shlex.split(script[script.index("agent=(") :].splitlines()[2])
    assert agent[:4] == ["--directory", "$home", "--attempt", "1"]
    assert agent[4:6] == ["--first-rank", "2"] and f"--allocation {home.allocation}" in script
    _, later = plan_growth(config, home, 1)
    assert later.joined is not None and later.joined.first_rank == 4


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"release_why": "enough"}, "is being released"), ({"ended": Ended("FAILED", "", "", 0.0)}, "has ended")],
)
def test_only_a_living_allocation_grows(home: AllocationRecord, changes: dict[str, object], problem: str) -> None:
    with pytest.raises(AllocationError, match=problem):
        plan_growth(load().config, replace(home, **changes), 1)  # type: ignore[arg-type]


def test_one_that_is_not_ready_or_held_by_salloc_does_not_grow(tmp_path: Path, home: AllocationRecord) -> None:
    with pytest.raises(AllocationError, match="not ready"):
        plan_growth(load().config, replace(home, directory=tmp_path / "none"), 1)
    config = load().config
    with pytest.raises(ConfigError, match="salloc"):
        plan_growth(replace(config, slurm=replace(config.slurm, allocate_by="salloc")), home, 1)


def test_a_job_is_ready_once_the_head_has_all_of_its_hosts(tmp_path: Path, home: AllocationRecord) -> None:
    job = joining(tmp_path, first_rank=2)
    assert look_joined(home, job).granted is None
    grant(job.directory / "attempts" / "1", "n[3-4]")
    for hosts, is_ready in ((["n1", "n2", "n3"], False), (["n1", "n2", "n3", "n4"], True)):
        write_ready(home.directory / "attempts" / "1", ready(hosts))
        seen = look_joined(home, job)
        assert (seen.granted is not None, seen.ready is not None) == (True, is_ready)
    assert seen.ready is not None and [host.name for host in seen.ready.hosts] == ["n3", "n4"]
    write_json(
        home.directory / "attempts" / "1" / "ended.json", {"schema": 1, "job_id": 7, "exit_status": 0, "time_s": 1}
    )
    with pytest.raises(AllocationError, match="has ended before its further hosts came"):
        look_joined(home, job)


def test_the_registry_keeps_its_jobs_apart_from_allocations(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "state")
    home, job = record(directory=tmp_path / "01234567"), joining(tmp_path, first_rank=4)
    registry.create(home)
    registry.create(job)
    assert [one.allocation for one in registry.records()] == [home.allocation]
    assert registry.joined(home) == [job]
    assert registry.find("dev").allocation == home.allocation
    registry.close(job, Ended("RELEASED", "", "monarch-hpc", 1.0))
    assert registry.joined(home) == []


@pytest.mark.parametrize("ends", [True, False])
def test_a_job_does_not_outlive_its_allocation(tmp_path: Path, ends: bool) -> None:
    registry = Registry(tmp_path / "state")
    home, job = record(directory=tmp_path / "01234567"), joining(tmp_path)
    registry.create(home)
    registry.create(job)
    registry.set_job(job, 9, 2001.0)
    if ends:
        registry.close(home, Ended("TIMEOUT", "", "scontrol", 3000.0))
    census = take_census(registry, SlurmClient({"PATH": str(tmp_path)}, 1.0), 0.0)  # there is no squeue
    (found,) = census.joined
    assert found.release_why == ("the allocation that it joins has ended" if ends else "")
    assert [one.allocation for one in census.records] == [home.allocation]
