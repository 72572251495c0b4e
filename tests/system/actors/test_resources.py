"""Resources of an actor are closed with it, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, ProcMesh, endpoint
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


def note(path: Path, word: str) -> None:
    with path.open("a") as file:
        print(word, file=file)


def fail() -> None:
    raise OSError("cannot be closed")


class Owner(Actor):
    """Owns two files' worth of words and a resource that cannot be closed."""

    def __init__(self, path: Path, broken: bool = False) -> None:
        self.path = path
        monarch_hpc.context().own(partial(note, path, "first"))
        monarch_hpc.context().own(fail)
        if broken:
            raise ValueError("not today")

    @endpoint
    def ready(self) -> None:
        """Own one more, from an endpoint."""
        monarch_hpc.context().own(partial(note, self.path, "second"))

    def __cleanup__(self, error: BaseException | None) -> None:
        note(self.path, "cleanup")


@pytest.fixture(scope="module")
def procs(shared_hosts: SharedHosts) -> Iterator[ProcMesh]:
    with shared_hosts.controlled(1) as hosts:
        procs = hosts.spawn_procs()
        settle(procs)
        yield procs


def words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_resources_are_closed_after_the_cleanup_the_last_first(procs: ProcMesh, tmp_path: Path) -> None:
    path = tmp_path / "words"
    owner = procs.spawn("owner", Owner, path)
    owner.ready.call_one().get(_PATIENCE_S)
    owner.stop().get(_PATIENCE_S)
    assert words(path) == ["cleanup", "second", "first"]


def test_resources_of_a_constructor_that_fails_are_closed(
    procs: ProcMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_hpc.actor.unhandled_fault_hook", lambda _failure: None)
    path = tmp_path / "words"
    with pytest.raises(ActorDied, match="not today"):
        procs.spawn("owner", Owner, path, broken=True).ready.call_one().get(_PATIENCE_S)
    wait_until("the end", lambda: words(path), accept=lambda found: found == ["first"])


def test_resources_are_closed_with_the_proc(procs: ProcMesh, tmp_path: Path) -> None:
    path = tmp_path / "words"
    ending = monarch_hpc.hosts().spawn_procs()
    ending.spawn("owner", Owner, path).ready.call_one().get(_PATIENCE_S)
    ending.stop().get(_PATIENCE_S)
    assert words(path) == ["cleanup", "second", "first"]
