"""Streams on two procs: tensors that belong to them, loans between them, and breaches of the rules of loans."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh
from monarch_hpc.tensor import (
    RemoteOpError,
    Stream,
    fetch_shard,
    get_active_mesh,
    get_active_stream,
    inspect,
    no_mesh,
    remote,
    sync,
)

_GET_S = 60.0


def both(tensor: Any) -> list[Any]:
    """The values of both ranks."""
    return [fetch_shard(tensor, dp=rank).get(_GET_S).tolist() for rank in range(2)]


_opened = Event()


def waits_for_opens(x: torch.Tensor) -> torch.Tensor:
    """Wait until another stream of this rank has run `opens`."""
    assert _opened.wait(_GET_S)
    return x + 1


def opens(x: torch.Tensor) -> torch.Tensor:
    """See `waits_for_opens`."""
    _opened.set()
    return x + 1


@pytest.fixture(scope="module")
def comms() -> Stream:
    """A stream that all tests share."""
    return Stream("comms")


@pytest.fixture
def active(procs: ProcMesh) -> Iterator[ProcMesh]:
    """The procs, active."""
    with procs.activate():
        yield procs


def test_new_tensors_belong_to_the_active_stream(procs: ProcMesh, comms: Stream) -> None:
    assert (get_active_stream().name, get_active_mesh()) == ("main", None)
    with procs.activate():
        x: Any = torch.ones(2)
        with comms.activate() as entered:
            assert entered is get_active_stream() is comms and get_active_mesh() is procs
            y: Any = torch.ones(2) + procs.rank("dp")
            with get_active_stream().activate():
                y = y * torch.full((2,), 3.0)
        with no_mesh.activate():
            assert get_active_mesh() is None
        with pytest.raises(ValueError, match=r"different streams.*stream\.borrow"):
            x + y
        z = torch.ones(2) + x
    with comms.activate(), procs.activate():
        z2 = y + torch.zeros(2)
    assert both(y) == [[3.0, 3.0], [6.0, 6.0]] == both(z2) and both(z) == [[2.0, 2.0]] * 2
    assert "comms" in repr(y) and "comms" not in repr(x)


def test_a_stream_reduces_while_the_other_computes(active: ProcMesh, comms: Stream) -> None:
    waits = remote(f"{__name__}.waits_for_opens", propagate=lambda x: x * 1)
    opens = remote(f"{__name__}.opens", propagate=lambda x: x * 1)
    grad: Any = torch.ones(4) * (active.rank("dp") + 1)
    lent, borrow = comms.borrow(grad, mutable=True)
    with comms.activate():
        lent.reduce_("dp", "sum")
        told = opens(torch.zeros(1))  # after the sum, while the main stream is busy
    done = waits(torch.zeros(1))
    borrow.drop()
    grad += 1
    assert both(grad) == [[4.0] * 4] * 2 and both(done) == [[1.0]] * 2 == both(told)


def test_a_loan_shares_memory_and_orders_both_streams(active: ProcMesh, comms: Stream) -> None:
    x: Any = torch.zeros(3)
    for turn in range(50):
        x += 1
        lent, borrow = comms.borrow(x, mutable=True)
        lent *= 2 if turn < 3 else 1
        borrow.drop()
        borrow.drop()  # nothing happens
    assert both(x) == [[((0 + 1) * 2 + 1) * 4 + 2 + 47.0] * 3] * 2
    one, first = comms.borrow(x)
    other = Stream("other")
    two, second = other.borrow(x)
    with pytest.raises(ValueError, match="different streams"):
        one + two
    total = one * 2
    with first, second:
        assert inspect(two).tolist() == [61.0] * 3 == inspect(x).tolist()
    x.zero_()
    assert both(total) == [[122.0] * 3] * 2 and "dropped" in repr(first)
    with pytest.raises(ValueError, match="already"):
        comms.borrow(total)


def test_breaches_name_both_lines_and_send_nothing(active: ProcMesh, comms: Stream) -> None:
    x: Any = torch.arange(4.0)
    part, alone = x[1:], x.detach()
    lent, borrow = comms.borrow(x, mutable=True)  # the loan
    for use in (
        lambda: x + 1,
        lambda: part.sum(),
        lambda: alone.reshape(2, 2),
        lambda: x.zero_(),
        lambda: x.reduce("dp"),
        lambda: inspect(x),
        lambda: x.to_mesh(active),
        lambda: x.slice_mesh(dp=0),
        lambda: comms.borrow(part),
        lambda: remote(lambda t: t)(x),
    ):
        with pytest.raises(RuntimeError, match=r"test_streams.py.*uses a tensor that is lent mutable") as breach:
            use()
        text = str(breach.value)
        assert text.count("test_streams.py:") == 2 and "# the loan" in text and "<Stream comms>" in text
    lent += 1
    inner = lent[2:]
    borrow.drop()  # the end
    for use in (lambda: lent + 1, lambda: inner.zero_(), lambda: inspect(lent)):
        with pytest.raises(RuntimeError, match=r"given back at .*# the end.*# the loan"):
            use()
    assert inspect(part).tolist() == [2.0, 3.0, 4.0]
    reading, borrow = comms.borrow(part)
    assert inspect(x * 2).tolist() == [2.0, 4.0, 6.0, 8.0]
    for use in (lambda: x.zero_(), lambda: part.reduce_("dp"), lambda: alone.mul_(2), lambda: torch.add(x, 1, out=x)):
        with pytest.raises(RuntimeError, match="writes to a tensor that is lent for reading"):
            use()
    for use in (lambda: reading.zero_(), lambda: reading[:1].fill_(3), lambda: reading.reduce_("dp")):
        with pytest.raises(RuntimeError, match="borrow it with mutable=True"):
            use()
    with pytest.raises(RuntimeError, match="lent for reading"):
        comms.borrow(x, mutable=True)
    further, inside = Stream("third").borrow(reading)
    assert inspect(further).tolist() == [2.0, 3.0, 4.0]
    inside.drop()
    borrow.drop()
    x.zero_()
    sync(active)
    assert inspect(part).tolist() == [0.0] * 3


def test_what_is_lent_on_is_not_given_back(active: ProcMesh, comms: Stream) -> None:
    x: Any = torch.zeros(2)
    lent, borrow = comms.borrow(x, mutable=True)
    with Stream("on").borrow(lent, mutable=True)[1], pytest.raises(RuntimeError, match="lent mutable"):
        borrow.drop()
    borrow.drop()
    x += 1
    assert inspect(x).tolist() == [1.0, 1.0]


def test_gradients_can_be_lent_and_backward_does_not_add_to_them(active: ProcMesh, comms: Stream) -> None:
    weight = torch.ones(2, requires_grad=True)
    (weight * (active.rank("dp") + 1)).sum().backward()
    grad: Any = weight.grad
    lent, borrow = comms.borrow(grad, mutable=True)
    with pytest.raises(RuntimeError, match="lent mutable"):
        (weight * 2).sum().backward()  # type: ignore[no-untyped-call]
    lent.reduce_("dp")
    borrow.drop()
    torch.optim.SGD([weight], lr=1.0).step()
    assert both(weight) == [[-2.0, -2.0]] * 2
    with pytest.raises(TypeError, match=r"t\.detach"):
        comms.borrow(weight)
    with torch.no_grad():
        reading, borrow = comms.borrow(weight)
    assert not reading.requires_grad
    borrow.drop()


def test_failures_cross_streams_with_class_and_line(active: ProcMesh, comms: Stream) -> None:
    @remote(propagate=lambda x: x * 1)
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("before it was lent")

    bad, borrow = comms.borrow(fails(torch.ones(2)))
    with pytest.raises(ArithmeticError, match="before it was lent") as error:
        inspect(bad + 1)
    assert isinstance(error.value, RemoteOpError) and "fails(torch.ones(2))" in error.value.line
    borrow.drop()
    x: Any = torch.ones(2)
    lent, borrow = comms.borrow(x, mutable=True)
    with comms.activate():
        lent.copy_(fails(torch.ones(2)))
    borrow.drop()
    with pytest.raises(ArithmeticError, match="before it was lent"):
        inspect(x)
    sync(active)  # all was read


def test_copies_go_to_other_ranks_and_streams_at_once(active: ProcMesh, comms: Stream) -> None:
    first, second = active.slice(dp=0), active.slice(dp=1)
    whole: Any = torch.full((2,), 5.0)
    x = whole.slice_mesh(dp=0)
    moved = x.to_mesh(second, stream=comms)
    with comms.activate(), second.activate():
        moved *= torch.full((2,), 2.0)
    assert inspect(moved).tolist() == [10.0, 10.0] and moved.mesh == second.region
    back = moved.to_mesh(first, stream=get_active_stream())
    assert inspect(back + x).tolist() == [15.0, 15.0]
    again = moved.to_mesh(first)
    with pytest.raises(ValueError, match="different streams"):
        again + x


def test_sharded_tensors_have_no_streams(active: ProcMesh, comms: Stream) -> None:
    mesh = Mesh(procs=active, commit=False)
    with pytest.raises(TypeError, match="belongs to no stream"):
        comms.borrow(mesh.zeros(4))
    with pytest.raises(TypeError, match="mesh tensor"):
        comms.borrow(3)
    own, borrow = comms.borrow(mesh.ones(4, spec=["dp"]).to_local(["dp"]))
    with borrow:
        assert inspect(own).tolist() == [1.0, 1.0]
