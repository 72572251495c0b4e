"""Broadcast and gather over several hosts and fabrics: whole bytes, guard bytes, and receivers that stop or die."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monarch_hpc import Actor, ActorMesh, HostMesh, MeshFailure, ProcDied, ProcMesh, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import CopyFailed, CopyTimeout, MemoryAccessError
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.rdma import RDMABuffer, RDMAState, broadcast, gather
from monarch_hpc.rdma.spread.course import PATIENCE_S
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_GUARD = 64
_POISON = 0xA5

once = pytest.mark.parametrize("hosts", ["tcp"], indirect=True, ids=[""])
"""For what does not depend on the fabric."""


class Holder(Actor):
    """Has memory between guard bytes."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    @endpoint
    def make(self, num_bytes: int, writable: bool = True) -> RDMABuffer:
        self.memory = np.full(num_bytes + 2 * _GUARD, _POISON, np.uint8)
        return RDMABuffer(self.memory[_GUARD:-_GUARD], writable=writable)

    @endpoint
    def again(self) -> RDMABuffer:
        """Another buffer of the same memory."""
        return RDMABuffer(self.memory[_GUARD:-_GUARD])

    @endpoint
    def fill(self) -> None:
        self.memory[_GUARD:-_GUARD] = np.frombuffer(os.urandom(len(self.memory) - 2 * _GUARD), np.uint8)

    @endpoint
    def poison(self) -> None:
        self.memory[:] = _POISON

    @endpoint
    def look(self) -> tuple[str, bool]:
        """The digest of the memory, and whether the bytes around it are as they were."""
        around = np.concatenate([self.memory[:_GUARD], self.memory[-_GUARD:]])
        return digest(self.memory[_GUARD:-_GUARD]), bool((around == _POISON).all())

    @endpoint
    def make_state(self, tree: Any, copies: int = 0, writable: bool = True) -> RDMAState:
        self.tree = tree
        self.state = RDMAState(tree, copies=copies, writable=writable)
        return self.state

    @endpoint
    def tree_now(self) -> Any:
        return self.tree

    @endpoint
    def publish_all(self, versions: int) -> None:
        for version in range(2, versions + 1):
            for array in self.tree.values():
                array.fill(version)
            assert self.state.publish() == version

    @endpoint
    def compute(self, until: str) -> int:
        turns = 0
        while not Path(until).exists():
            turns += 1
        return turns

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def digest(data: np.ndarray) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()


@pytest.fixture(scope="module", params=["cma", "ucx", "tcp"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    order = {"cma": ["cma", "tcp"], "ucx": ["ucx", "tcp"], "tcp": ["tcp"]}
    overrides = {"procs.stop_s": 0.5, "fabric.order": order[request.param]}
    with controlled(load(overrides).config, 3) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    """Two procs on each of three hosts."""
    procs = hosts.spawn_procs({"gpus": 2})
    settle(procs)
    return procs


@pytest.fixture(scope="module")
def holders(procs: ProcMesh) -> ActorMesh[Holder]:
    return procs.spawn("holder", Holder)


def made(holders: ActorMesh[Holder], num_bytes: int) -> list[RDMABuffer]:
    return list(holders.make.call(num_bytes).get(_PATIENCE_S).values())


def data_of(num_bytes: int) -> np.ndarray:
    return np.frombuffer(os.urandom(num_bytes), np.uint8).copy()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process; its threads run on for a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)
    wait_until("the stop", lambda: read_stat(pid), accept=lambda stat: stat is not None and stat.state == "T")
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("num_bytes", [1, 4097, 5_000_003])
def test_all_get_all_bytes_and_nothing_beside_them(holders: ActorMesh[Holder], num_bytes: int) -> None:
    first, *others = made(holders, num_bytes)
    holders.slice(hosts=0, gpus=0).fill.call_one().get(_PATIENCE_S)
    here = np.full(num_bytes + 2 * _GUARD, _POISON, np.uint8)
    own = RDMABuffer(here[_GUARD:-_GUARD])  # the program takes part, too
    broadcast(first, [*others, own]).get(_PATIENCE_S)
    looks = list(holders.look.call().get(_PATIENCE_S).values())
    assert looks == [(digest(here[_GUARD:-_GUARD]), True)] * 6
    assert (here[:_GUARD] == _POISON).all() and (here[-_GUARD:] == _POISON).all()


def test_many_become_one(holders: ActorMesh[Holder]) -> None:
    parts = made(holders, 1_000_003)
    holders.fill.call().get(_PATIENCE_S)
    here = np.full(6 * 1_000_003 + 2 * _GUARD, _POISON, np.uint8)
    gather(parts, RDMABuffer(here[_GUARD:-_GUARD])).get(_PATIENCE_S)
    looks = holders.look.call().get(_PATIENCE_S).values()
    arrived = here[_GUARD:-_GUARD].reshape(6, -1)
    assert [digest(row) for row in arrived] == [seen for seen, _ in looks]
    assert (here[:_GUARD] == _POISON).all() and (here[-_GUARD:] == _POISON).all()
    # To a part of another's memory.
    target = holders.slice(hosts=2, gpus=1).make.call_one(3_000_000).get(_PATIENCE_S)
    pieces = [RDMABuffer(data_of(size)) for size in (5, 1_000_000, 1)]
    gather(pieces, target[100:1_000_106]).get(_PATIENCE_S)
    assert bytes(target.read().get(_PATIENCE_S)[:1_000_110]) == b"".join(
        [b"\xa5" * 100, *(bytes(piece.read().get(_PATIENCE_S)) for piece in pieces), b"\xa5" * 4]
    )


@once
def test_the_owners_compute_meanwhile(holders: ActorMesh[Holder], tmp_path: Path) -> None:
    targets = made(holders, 300_000)
    data = data_of(300_000)
    computing = holders.compute.call(str(tmp_path / "end"))
    broadcast(RDMABuffer(data), targets).get(_PATIENCE_S)
    assert not computing.done()
    (tmp_path / "end").touch()
    computing.get(_PATIENCE_S)
    assert set(holders.look.call().get(_PATIENCE_S).values()) == {(digest(data), True)}


@once
def test_what_cannot_be_copied_is_refused_before_a_byte_moves(holders: ActorMesh[Holder]) -> None:
    data = data_of(10_000)
    source = RDMABuffer(data)
    first, other, *_ = made(holders, 10_000)
    one = holders.slice(hosts=0, gpus=0)
    for targets, words in [
        ([first, other[:9_999]], r"destinations\[1\] has 9999 bytes, the source 10000"),
        ([first, other, first], r"destinations\[0\] overlaps with destinations\[2\]"),
        ([source], r"destinations\[0\] overlaps with source"),
        ([RDMABuffer(data_of(10_000), writable=False)], r"destinations\[0\] can only be read"),
    ]:
        with pytest.raises(ValueError, match=words):
            broadcast(source, targets)
    with pytest.raises(ValueError, match="the sources have 20000 bytes together, the destination 10000"):
        gather([source, source], first)
    with pytest.raises(TypeError, match=r"destinations\[0\] has elements of float64, the buffer of int32"):
        broadcast(RDMABuffer(np.zeros(8, np.int32)), [RDMABuffer(np.zeros(4))])
    with pytest.raises(TypeError, match=r"destinations\[0\] is array.*give a buffer"):
        broadcast(source, [data])  # type: ignore[list-item]
    # Its owner knows that it is the same memory.
    with pytest.raises(MemoryAccessError, match=r"destinations\[2\].*overlap with those of another destination"):
        broadcast(source, [first, other, one.again.call_one().get(_PATIENCE_S)]).get(_PATIENCE_S)
    with pytest.raises(MemoryAccessError, match=r"destinations\[0\].*overlap with those of the source"):
        broadcast(first, [one.again.call_one().get(_PATIENCE_S), other]).get(_PATIENCE_S)
    gone = RDMABuffer(data_of(10_000))
    gone.drop().get(_PATIENCE_S)
    with pytest.raises(MemoryAccessError, match=r"destinations\[1\].*dropped by"):
        broadcast(source, [first, gone]).get(_PATIENCE_S)
    with pytest.raises(MemoryAccessError, match=r"the source.*dropped by"):
        broadcast(gone, [first, other]).get(_PATIENCE_S)
    poisoned = digest(np.full(10_000, _POISON, np.uint8))
    assert set(holders.look.call().get(_PATIENCE_S).values()) == {(poisoned, True)}
    broadcast(source, [first, other]).get(_PATIENCE_S)  # nothing of all that is left
    broadcast(source, []).get(_PATIENCE_S)


def test_who_stops_holds_nobody_up_and_who_dies_is_named(
    hosts: HostMesh, holders: ActorMesh[Holder], faults: list[MeshFailure]
) -> None:
    """The first proc of the second host, from which its neighbour and the third host would pull."""
    doomed = hosts.slice(hosts=1).spawn_procs(name="doomed").spawn("doomed", Holder)
    victim = doomed.make.call_one(2_000_000).get(_PATIENCE_S)
    pid = doomed.pid.call_one().get(_PATIENCE_S)
    targets = made(holders, 2_000_000)
    data = data_of(2_000_000)
    with stopped(pid):
        copying = broadcast(RDMABuffer(data), [*targets[:2], victim, *targets[2:]])
        # Still under way, as the stopped one may go on; the others have what they need.
        wait_until("the others", lambda: set(holders.look.call().get(_PATIENCE_S).values()) == {(digest(data), True)})
        assert not copying.done()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(CopyFailed, match=r"failed for 1: destinations\[2\]") as failed:
            copying.get(_PATIENCE_S)
    assert set(failed.value.failures) == {2} and isinstance(failed.value.failures[2], ProcDied)


@once
def test_a_limit_and_a_cancellation_end_it_and_later_nothing_is_written(
    hosts: HostMesh, holders: ActorMesh[Holder]
) -> None:
    slow, other, *_ = (holders.slice(hosts=host, gpus=0) for host in (2, 0))
    data = data_of(1_000_000)
    late, target = (each.make.call_one(len(data)).get(_PATIENCE_S) for each in (slow, other))
    with stopped(slow.pid.call_one().get(_PATIENCE_S)):
        begun_s = time.monotonic()
        with pytest.raises(CopyTimeout, match=r"not done after 0.5 s: destinations\[1\]") as failed:
            broadcast(RDMABuffer(data), [target, late], timeout=0.5).get(_PATIENCE_S)
        assert set(failed.value.failures) in ({1}, {0, 1})  # none may begin within the patience
        copying = broadcast(RDMABuffer(data), [target, late], timeout=None)
        assert not copying.cancel()
        wait_until("its end", copying.cancelled)
        assert time.monotonic() - begun_s < 0.5 + 2 * 1.0 + 30.0
    slow.poison.call_one().get(_PATIENCE_S)
    broadcast(RDMABuffer(data), [target]).get(_PATIENCE_S)
    assert slow.look.call_one().get(_PATIENCE_S)[0] == digest(np.full(len(data), _POISON, np.uint8))
    assert other.look.call_one().get(_PATIENCE_S)[0] == digest(data)


@once
def test_a_source_that_dies_and_memory_that_is_dropped_are_named(
    hosts: HostMesh, holders: ActorMesh[Holder], faults: list[MeshFailure]
) -> None:
    doomed = hosts.slice(hosts=0).spawn_procs(name="source").spawn("doomed", Holder)
    source = doomed.make.call_one(1_000_000).get(_PATIENCE_S)
    pid = doomed.pid.call_one().get(_PATIENCE_S)
    first, other, third, *_ = made(holders, 1_000_000)
    with stopped(pid):
        copying = broadcast(source, [first, other, third])
        gathering = gather([first, source], RDMABuffer(np.zeros(2_000_000, np.uint8)))
        # The source is waited for no longer than this; then they begin, and get nothing.
        wait_until("the gathering of the first", lambda: _arrived(gathering), PATIENCE_S + 20.0)
        other.drop().get(_PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(CopyFailed) as failed:
            copying.get(_PATIENCE_S)
        assert isinstance(failed.value.failures[0], ProcDied) and "the source" in str(failed.value.failures[0])
        assert isinstance(failed.value.failures[1], MemoryAccessError) and "dropped by" in str(failed.value)
        with pytest.raises(CopyFailed, match=r"failed for 1: sources\[1\], memory of .* died"):
            gathering.get(_PATIENCE_S)


def _arrived(gathering: object) -> bool:
    copies = vars(gathering)["_copies"]
    return not copies[0].course.left


def tree_of(value: int) -> dict[str, Any]:
    """A tree whose arrays are of all sizes, two of which are one."""
    large = np.full((300, 1001), value, np.float32)
    return {
        "large": large,
        "tied": large,
        "part": np.full(2002, value),
        "small": [np.full(3, value), np.array(value)],
        "name": "a",
    }


def test_a_tree_reaches_all_trees(holders: ActorMesh[Holder]) -> None:
    first = holders.slice(hosts=0, gpus=0).make_state.call_one(tree_of(7), writable=False).get(_PATIENCE_S)
    others = [
        holders.slice(hosts=host, gpus=1).make_state.call_one(tree_of(host)).get(_PATIENCE_S) for host in range(3)
    ]
    mine = tree_of(9) | {"name": "mine"}
    assert broadcast(first, [*others, RDMAState(mine, writable=True)]).get(_PATIENCE_S) == 0
    for tree in (mine, *(holders.slice(hosts=host, gpus=1).tree_now.call_one().get(_PATIENCE_S) for host in range(3))):
        assert all((array == 7).all() for array in (tree["large"], tree["part"], *tree["small"]))
        assert tree["tied"] is tree["large"]
    assert mine["name"] == "mine"
    assert broadcast(first, []).get(_PATIENCE_S) == 0


@once
def test_a_version_reaches_all_as_a_whole_while_its_owner_publishes(holders: ActorMesh[Holder]) -> None:
    owner = holders.slice(hosts=0, gpus=0)
    tree = {f"layers.{number}": np.full(1000, 1) for number in range(20)}
    source = owner.make_state.call_one(tree, copies=2, writable=False).get(_PATIENCE_S)
    mine = {key: np.zeros_like(array) for key, array in tree.items()}
    other = {key: np.zeros_like(array) for key, array in tree.items()}
    targets = [RDMAState(mine, writable=True), RDMAState(other, writable=True)]
    assert broadcast(source, targets).get(_PATIENCE_S) == 1
    publishing = owner.publish_all.call_one(30)
    seen = []
    while not publishing.done():
        seen.append(broadcast(source, targets).get(_PATIENCE_S))
        assert all((array == seen[-1]).all() for one in (mine, other) for array in one.values())
    publishing.get(_PATIENCE_S)
    assert seen == sorted(seen) and broadcast(source, targets).get(_PATIENCE_S) == 30


@once
def test_trees_that_cannot_take_another_are_named_before_a_byte_moves(holders: ActorMesh[Holder]) -> None:
    near = holders.slice(hosts=0, gpus=0)
    source = near.make_state.call_one({"w": np.ones(48, np.int32), "b": np.ones(10, np.int32)}).get(_PATIENCE_S)
    memory = bytearray(b"\xa5" * 4 * 100)
    here = np.frombuffer(memory, np.int32)
    good = RDMAState({"w": here[16:64], "b": here[80:90]}, writable=True)
    fixed = here[80:90].copy()
    fixed.flags.writeable = False
    for bad, problem in (
        (RDMAState({"w": here[16:64], "b": here[80:90]}), r"destinations\[1\].*can only be read"),
        (RDMAState({"w": here[16:64]}, writable=True), r"destinations\[1\] and the source differ in 'b'"),
        (RDMAState({"w": here[16:64], "b": np.ones(10)}, writable=True), "differ in 'b'"),
        (RDMAState({"w": here[16:64], "b": np.ones((2, 5), np.int32)}, writable=True), "differ in 'b'"),
        (RDMAState({"w": here[0:96:2], "b": here[81:101:2]}, writable=True), "differ in 'b', 'w'"),
        (RDMAState({"w": here[16:64], "b": here[80:90]}, copies=1), "can only be read"),
    ):
        with pytest.raises(ValueError, match=problem):
            broadcast(source, [good, bad]).get(_PATIENCE_S)
    with pytest.raises(MemoryAccessError, match="overlap"):
        broadcast(source, [good, RDMAState({"w": here[16:64], "b": here[70:80]}, writable=True)]).get(_PATIENCE_S)
    assert memory == b"\xa5" * 400
    assert broadcast(source, [good]).get(_PATIENCE_S) == 0
    assert (here[16:64] == 1).all() and (here[80:90] == 1).all()
    assert memory[:64] == b"\xa5" * 64 and memory[256:320] == b"\xa5" * 64 and memory[360:] == b"\xa5" * 40
    with pytest.raises(TypeError, match=r"destinations\[0\] is .*: give a state"):
        broadcast(source, [RDMABuffer(np.ones(3))])
    with pytest.raises(ValueError, match="can only be read: pass copies"):
        RDMAState({"b": fixed}, writable=True)
    with pytest.raises(ValueError, match="without copies"):
        RDMAState({"b": here}, copies=2, writable=True)
    gone = near.make_state.call_one({"w": np.ones(48, np.int32), "b": np.ones(10, np.int32)}).get(_PATIENCE_S)
    gone.drop().get(_PATIENCE_S)
    with pytest.raises(MemoryAccessError, match="dropped"):
        broadcast(gone, [good]).get(_PATIENCE_S)
