"""Records survive crashes at any moment, and a name has at most one live allocation."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.slurm.record import AllocationRecord, Ended, OwnerProcess, current_owner, owner_lives
from monarch_hpc.slurm.registry import Registry, Snapshot
from tests.unit.slurm.makers import ALICE, record, row

ENDED = Ended("TIMEOUT", "the time limit was reached", "scontrol", 2000.0)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "state")


def make(
    registry: Registry, number: int, name: str = "dev", created_s: float | None = None, owner: OwnerProcess = ALICE
) -> AllocationRecord:
    made = record(
        allocation=f"{number:08x}" + "0" * 24,
        name=name,
        owner=owner,
        directory=registry.root.parent / f"{number:08x}",
        created_s=1000.0 + number if created_s is None else created_s,
    )
    made.directory.mkdir()
    (made.directory / "key").write_bytes(b"k" * 32)
    registry.create(made)
    return made


def test_a_record_is_read_as_it_was_written(registry: Registry) -> None:
    made = make(registry, 1)
    assert registry.records() == (made,)
    made = registry.set_job(made, 7, 1001.5)
    assert (made.job_id, made.submitted_s, made.live) == (7, 1001.5, True)
    assert registry.records() == (made,)
    made = registry.request_release(made, "it is not needed")
    assert made.release_why == "it is not needed"
    assert registry.records() == (made,)
    made = registry.close(made, ENDED)
    assert registry.records() == (made,)
    assert made.ended == ENDED and not made.live


def test_nobody_else_can_read_it(registry: Registry) -> None:
    made = registry.close(registry.set_job(make(registry, 1), 7, 1.0), ENDED)
    registry.store_snapshot(Snapshot(1.0, frozenset(), ""))
    open_to_others = [
        path for path in registry.root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077
    ]
    assert open_to_others == []
    assert not (made.directory / "key").exists()


def test_a_live_name_is_refused_and_says_how_to_use_or_release_it(registry: Registry) -> None:
    first = registry.set_job(make(registry, 1), 7, 1001.0)
    with pytest.raises(AllocationError) as failure:
        make(registry, 2)
    assert [word for word in ("job 7", "run -a dev", "release dev") if word not in str(failure.value)] == []
    assert registry.records() == (first,)
    registry.close(first, ENDED)
    assert make(registry, 3).name == "dev"


def test_a_name_whose_owner_just_died_says_when_it_is_free(registry: Registry) -> None:
    me = current_owner()
    make(registry, 1, owner=replace(me, start_ticks=me.start_ticks + 1))
    with pytest.raises(AllocationError, match="died a moment ago"):
        make(registry, 2)
    make(registry, 3, "other", owner=me)
    with pytest.raises(AllocationError, match=f"being submitted by process {me.pid} on "):
        make(registry, 4, "other")


def test_a_claim_whose_record_is_gone_is_free(registry: Registry) -> None:
    claims = registry.root / "names" / "dev"
    claims.mkdir(parents=True, mode=0o700)
    (registry.root / "names").chmod(0o700)
    claims.chmod(0o700)
    (claims / "41").symlink_to("deadbeef")
    make(registry, 1)
    assert sorted(os.listdir(claims)) == ["42"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a b", "x" * 65, "é", "a\n"])
def test_a_name_must_be_able_to_name_a_folder(registry: Registry, name: str) -> None:
    with pytest.raises(ConfigError):
        make(registry, 1, name=name)
    assert registry.records() == ()


def test_what_a_command_means(registry: Registry) -> None:
    with pytest.raises(AllocationError, match="there is no allocation; take one"):
        registry.find(None)
    old = registry.close(make(registry, 1), ENDED)
    assert registry.find("dev") == old
    dev = make(registry, 2)
    assert registry.find("dev") == registry.find(None) == registry.find("00000002") == dev
    data = make(registry, 3, "data")
    with pytest.raises(AllocationError, match="several allocations live; name one of them: dev, data"):
        registry.find(None)
    default = make(registry, 4, "default")
    assert registry.find(None) == default
    assert registry.find("data") == data
    with pytest.raises(AllocationError, match=r"no such allocation \(live: data, default, dev\)"):
        registry.find("nope")
    with pytest.raises(AllocationError) as unknown:
        registry.find("a\nb")
    assert str(unknown.value) == r"allocation 'a\nb': no such allocation (live: data, default, dev)"


def test_a_folder_without_record_is_a_command_that_just_began_or_died(registry: Registry) -> None:
    (registry.root / "abcdef01").mkdir(mode=0o700)
    assert registry.records() == ()
    made_s = (registry.root / "abcdef01").stat().st_mtime
    registry.prune(made_s + 10.0)
    assert (registry.root / "abcdef01").exists()
    registry.prune(made_s + 4000.0)
    assert not (registry.root / "abcdef01").exists()


def test_only_the_newest_ended_ones_are_kept(registry: Registry) -> None:
    for number in range(1, 54):
        registry.close(make(registry, number), ENDED)
    live = make(registry, 99, created_s=1.0)
    registry.prune(1e9)
    left = registry.records()
    assert [made.created_s for made in left] == [1.0, *(1000.0 + number for number in range(4, 54))]
    assert live in left
    assert not (registry.root.parent / "00000003").exists()
    assert (registry.root.parent / "00000004").exists()


def test_a_record_of_another_version_is_named(registry: Registry) -> None:
    path = registry.root / make(registry, 1).short_id / "record.json"
    path.write_text('{"schema": 2}')
    with pytest.raises(ConfigError, match="schema 2") as failure:
        registry.records()
    assert failure.value.source == str(path)


def test_what_squeue_said_is_kept_for_the_next_command(registry: Registry) -> None:
    assert registry.load_snapshot() is None
    listed = row()
    text = "7|mh-01234567|RUNNING|4|n[1-4]|2026-11-21T14:00:00|30:00|None\n"
    registry.store_snapshot(Snapshot(12.5, frozenset({"mh-01234567", "mh-b"}), text))
    found = registry.load_snapshot()
    assert found == Snapshot(12.5, frozenset({"mh-01234567", "mh-b"}), text)
    assert found is not None and found.rows() == {"mh-01234567": listed}


def test_this_process_lives_and_others_do_not() -> None:
    me = current_owner()
    assert owner_lives(me) is True
    assert owner_lives(type(me)(me.host, me.boot_id, me.pid, me.start_ticks + 1)) is False
    assert owner_lives(type(me)(me.host, "another boot", me.pid, me.start_ticks)) is False
    assert owner_lives(type(me)("elsewhere", me.boot_id, me.pid, me.start_ticks)) is None
    assert owner_lives(ALICE) is not True


def test_the_current_allocation_is_used_and_never_silently_another(registry: Registry) -> None:
    make(registry, 1)
    data = make(registry, 2, "data")
    make(registry, 3, "default")
    registry.set_current("data")
    assert (registry.current(), registry.find(None)) == ("data", data)
    registry.close(data, ENDED)
    with pytest.raises(AllocationError, match=r"the current allocation has ended \(live: dev, default\)"):
        registry.find(None)
    again = make(registry, 4, "data")
    assert registry.find(None) == again  # it is chosen by its name
    registry.set_current(None)
    assert registry.current() is None
    assert registry.find(None).name == "default"
