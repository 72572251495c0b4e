"""A program that moves tensors between its procs and itself, run by tests in a process of its own.

    python -m tests.gpu.torch_drill DEVICE PATH SCENARIO...

*DEVICE* is ``cuda``, or ``cpu``, which shows without a GPU that the program itself is right. *PATH* is what carries
bytes between the memory of two procs. It prints ``passed``, or fails.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

import pytest
import torch

import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, ActorError, ActorMesh, ProcMesh, endpoint
from monarch_hpc.rdma import RDMABuffer, RDMAState

__all__ = ["Scenario", "busy_streams", "killed", "parameters", "states", "threads"]

Scenario = Callable[[ProcMesh, str, str], None]

_PATIENCE_S = 120.0
_ROWS = 1001


def busy(device: str) -> None:
    """Keep the current stream of a GPU busy for some milliseconds."""
    if device == "cuda":
        work = torch.ones(512, 512, device=device)
        for _ in range(200):
            work = (work @ work).clamp(-1, 1)


class Holder(Actor):
    """Has a tensor on a device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._parameter = torch.nn.Parameter(torch.zeros(_ROWS, 512, dtype=torch.bfloat16, device=device))

    @endpoint
    def lend(self, value: float) -> RDMABuffer:
        """Lend the parameter, which its stream is still to fill with *value*."""
        busy(self._device)
        with torch.no_grad():
            self._parameter.fill_(value)
        return RDMABuffer(self._parameter)

    @endpoint
    async def fetch(self, buffer: RDMABuffer) -> tuple[str, float, float]:
        """Read *buffer* behind what the own stream does; return the path, and the least and the greatest element."""
        busy(self._device)
        with torch.no_grad():
            self._parameter.fill_(-1)
        await buffer.read_into(self._parameter)
        path = await buffer.path()
        other = torch.cuda.Stream() if self._device == "cuda" else None  # type: ignore[no-untyped-call]
        with torch.cuda.stream(other):  # the bytes are there for all streams
            low, high = self._parameter.float().aminmax()
        return path, float(low), float(high)

    @endpoint
    async def forever(self, buffer: RDMABuffer) -> None:
        for _ in range(1_000_000):
            await buffer.read_into(self._parameter)

    @endpoint
    def make_state(self) -> RDMAState:
        self._model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.Linear(300, 7)).to(self._device)
        self._state = RDMAState(self._model.state_dict(), copies=2, dtype=torch.bfloat16)
        return self._state

    @endpoint
    def publish(self, value: float) -> int:
        busy(self._device)
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.fill_(value)
        return self._state.publish()

    @endpoint
    async def follow(self, state: RDMAState, device: str) -> tuple[int, list[float]]:
        model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.Linear(300, 7)).to(device, torch.bfloat16)
        version = await state.read_into(model.state_dict())
        return version, [float(parameter.float().mean()) for parameter in model.parameters()]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def pair(procs: ProcMesh, name: str, device: str) -> tuple[ActorMesh[Holder], ActorMesh[Holder]]:
    holders = procs.spawn(name, Holder, device)
    return holders.slice(gpus=0), holders.slice(gpus=1)


def parameters(procs: ProcMesh, device: str, path: str) -> None:
    owner, user = pair(procs, "parameters", device)
    buffer = owner.lend.call_one(3.0).get(_PATIENCE_S)
    assert (buffer.dtype, buffer.shape) == ("bfloat16", (_ROWS, 512)) and buffer.device.startswith(device)
    assert user.fetch.call_one(buffer).get(_PATIENCE_S) == (path, 3.0, 3.0)
    here = buffer.read().get(_PATIENCE_S)
    assert here.device.type == "cpu" and bool((here == 3).all())
    buffer.write_from(torch.full((_ROWS, 512), 5.0, dtype=torch.bfloat16)).get(_PATIENCE_S)
    assert user.fetch.call_one(buffer[7:9]).get(_PATIENCE_S)[2] == 5.0
    buffer.drop().get(_PATIENCE_S)


def busy_streams(procs: ProcMesh, device: str, path: str) -> None:
    owner, user = pair(procs, "streams", device)
    for value in range(20):
        buffer = owner.lend.call_one(float(value)).get(_PATIENCE_S)
        assert user.fetch.call_one(buffer).get(_PATIENCE_S) == (path, float(value), float(value))
        buffer.drop().get(_PATIENCE_S)


def states(procs: ProcMesh, device: str, _path: str) -> None:
    owner, user = pair(procs, "states", device)
    state = owner.make_state.call_one().get(_PATIENCE_S)
    for version in range(2, 6):
        assert owner.publish.call_one(float(version)).get(_PATIENCE_S) == version
        for where in {device, "cpu"}:
            found, means = user.follow.call_one(state, where).get(_PATIENCE_S)
            assert found == version and means == [float(version)] * 4
    state.drop().get(_PATIENCE_S)


def threads(procs: ProcMesh, device: str, _path: str) -> None:
    owner, _user = pair(procs, "threads", device)
    buffer = owner.lend.call_one(4.0).get(_PATIENCE_S)
    targets = [torch.zeros(_ROWS, 512, dtype=torch.bfloat16, device=device) for _ in range(8)]
    users = [threading.Thread(target=lambda here=here: buffer.read_into(here).get(_PATIENCE_S)) for here in targets]
    for one in users:
        one.start()
    for one in users:
        one.join()
    assert all(bool((here == 4).all()) for here in targets)
    if device == "cuda":
        assert torch.cuda.current_device() == 0
    buffer.drop().get(_PATIENCE_S)


def killed(procs: ProcMesh, device: str, _path: str) -> None:
    owner, user = pair(procs, "killed", device)
    buffer = owner.lend.call_one(1.0).get(_PATIENCE_S)
    user.fetch.call_one(buffer).get(_PATIENCE_S)
    going = user.forever.call_one(buffer)
    os.kill(owner.pid.call_one().get(_PATIENCE_S), signal.SIGKILL)
    with pytest.raises(ActorError, match="ProcDied"):
        going.get(_PATIENCE_S)
    mine = RDMABuffer(torch.full((_ROWS, 512), 2.0, dtype=torch.bfloat16, device=device))
    assert user.fetch.call_one(mine).get(_PATIENCE_S)[1:] == (2.0, 2.0)  # its GPU still works


_SCENARIOS: dict[str, Scenario] = {one.__name__: one for one in (parameters, busy_streams, states, threads, killed)}


def main() -> None:
    """Run the scenarios."""
    device, path, *scenarios = sys.argv[1:]
    faults: list[object] = []
    monarch_hpc.actor.unhandled_fault_hook = faults.append
    with monarch_hpc.hosts() as hosts, hosts.spawn_procs({"gpus": 2}) as procs:
        for scenario in scenarios:
            _SCENARIOS[scenario](procs, device, path)
    print("passed")


if __name__ == "__main__":
    main()
