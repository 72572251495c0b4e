"""Collectives on devices at their end, with works and a group that tell what is asked of them; a GPU's identity."""

from __future__ import annotations

from threading import Event
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from monarch_hpc.tensor.worker.collectives.devices import DeviceBackend
from monarch_hpc.tensor.worker.collectives.nccl import Nccl
from monarch_hpc.tensor.worker.collectives.waits import Waits

_PATIENCE_S = 5.0


class Library(Nccl):
    found = ""

    def failure(self, _group: Any) -> str:
        return self.found


class Group:
    """Its abort ends its works when it may, and until then looking at them is a mistake."""

    def __init__(self) -> None:
        self.may_end, self.has_ended = Event(), Event()
        self.works: list[Work] = []

    def allreduce(self, _tensors: Any, _options: Any) -> Work:
        self.works.append(Work(self))
        return self.works[-1]

    def abort(self) -> None:
        self.may_end.wait(_PATIENCE_S)
        self.has_ended.set()


class Work:
    def __init__(self, group: Group) -> None:
        self._group = group
        self.num_looks = 0
        self.is_lost = False

    def is_completed(self) -> bool:
        self.num_looks += 1
        if self.is_lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return self._group.has_ended.is_set()

    def exception(self) -> None:
        """None: what NCCL's works that others have aborted say."""


def backend_of(group: Group, library: Library | None = None) -> tuple[DeviceBackend, Waits]:
    waits = Waits()
    return DeviceBackend(group, None, library or Library(), waits, _PATIENCE_S), waits


def issue(backend: DeviceBackend) -> None:
    backend.issue("allreduce", [torch.ones(1)], dist.AllreduceOptions())


def test_works_are_not_looked_at_while_their_group_is_aborted() -> None:
    """NCCL's would wait for its abort to end, with the interpreter's lock."""
    group = Group()
    backend, waits = backend_of(group)
    issue(backend)
    (work,) = group.works
    waits.abort("rank 1 died")
    backend.abort()
    backend.settle(monotonic() + 0.05)
    assert work.num_looks == 0 and not group.has_ended.is_set()
    group.may_end.set()
    backend.settle(monotonic() + _PATIENCE_S)
    assert work.num_looks == 1 and group.has_ended.is_set()


def test_works_of_a_device_that_is_lost_have_ended() -> None:
    group = Group()
    group.may_end.set()
    backend, waits = backend_of(group)
    issue(backend)
    group.works[0].is_lost = True
    waits.abort("its device is lost")
    backend.abort()
    begun_s = monotonic()
    backend.settle(begun_s + _PATIENCE_S)
    assert monotonic() < begun_s + _PATIENCE_S


def test_only_the_oldest_collective_that_has_not_ended_is_looked_at() -> None:
    group = Group()
    backend, _ = backend_of(group)
    for _ in range(3):
        issue(backend)
    backend.check()
    assert [work.num_looks for work in group.works] == [3, 0, 0]


def test_works_that_the_library_has_aborted_are_no_success() -> None:
    """torch's watchdog aborts a communicator whose collective is late: all have ended then, without an error."""
    group, library = Group(), Library()
    backend, _ = backend_of(group, library)
    issue(backend)
    group.has_ended.set()
    library.found = "torch's watchdog has found a TIMEOUT"
    for ask in (backend.drain, backend.drain, lambda: issue(backend)):  # nor is what comes after it
        with pytest.raises(RuntimeError, match="NCCL: torch's watchdog has found a TIMEOUT"):
            ask()


def test_reductions_are_known_with_and_without_a_factor() -> None:
    backend, _ = backend_of(Group())
    some: Any = dist.ReduceOp
    options = dist.AllreduceOptions()
    options.reduceOp = some.PREMUL_SUM(0.5)  # as FSDP asks for, of the backend of GPUs
    for reduction in (options.reduceOp, some.AVG, some.SUM, None):
        assert backend.has("allreduce", {torch.bfloat16}, reduction)
    assert not backend.has("allreduce", {torch.int32}, some.BAND)
    assert not backend.has("allreduce", {torch.complex64}, some.SUM)


class Watched:
    """What torch's group gives for its backend."""

    def __init__(self, error: Any) -> None:
        self._error = error

    def _get_backend(self, device: torch.device) -> Any:
        assert device.type == "cuda"
        return SimpleNamespace() if self._error is None else SimpleNamespace(get_error=lambda: self._error)


@pytest.mark.parametrize(("name", "found"), [("", ""), ("SUCCESS", ""), ("COMM_ERROR", "COMM_ERROR")])
def test_what_the_watchdog_has_found(name: str, found: str) -> None:
    kinds: Any = torch._C._distributed_c10d
    error = getattr(kinds.ErrorType, name) if name else None
    said = Nccl().failure(Watched(error))
    assert said.endswith(found) and bool(said) is bool(found)


@pytest.mark.parametrize("uuid", ["the same", "another"])  # as two parts of one GPU may have
def test_ranks_at_one_pci_address_share_a_gpu(uuid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        SimpleNamespace(uuid=name, pci_domain_id=0, pci_bus_id=bus, pci_device_id=0)
        for name, bus in (("one", 27), (uuid, 27), ("one", 28))
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: found.pop(0))
    first, second, third = (Nccl().identity() for _ in range(3))
    assert first == second != third
