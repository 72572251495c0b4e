"""Values larger than a frame travel, as far as memory holds them; each test has an allocation of its own."""

from __future__ import annotations

import os
import resource
import zlib
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from monarch_hpc import Actor, endpoint
from monarch_hpc.config.load import load
from tests.system.support.controlling import controlled, settle

Fabric = Literal["ucx", "tcp", "relay"]

_PATIENCE_S = 60.0
_SMALL_FRAME_BYTES = 1 << 20
_LONG_BYTES = 10 << 20  # several frames
# Of 64 MiB each: in all half a gigabyte, as much as the test allows beside one copy. LAYERS=30 makes 2 GB, in a minute.
_NUM_LAYERS = int(os.environ.get("LAYERS", "8"))
_LARGE_BYTES = 70 << 20  # enough for a look at the memory that is left


class Receiver(Actor):
    """Tells of what it gets."""

    @endpoint
    def echo(self, value: object) -> object:
        return value

    @endpoint
    def sum_of(self, value: bytes) -> tuple[int, int]:
        return len(value), zlib.crc32(value)

    @endpoint
    def peak_bytes(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    @endpoint
    def limit(self, more_bytes: int) -> None:
        """Let this process take so much more memory and no more."""
        with open("/proc/self/statm") as statm:
            mapped_bytes = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + more_bytes, resource.RLIM_INFINITY))


@pytest.mark.parametrize("fabrics", [("ucx", "tcp"), ("tcp",)], ids=["ucx", "tcp"])
def test_values_larger_than_a_frame_travel_directly_and_through_the_agents(fabrics: tuple[Fabric, ...]) -> None:
    """To one actor and back, and to several procs of two hosts by a cast."""
    loaded = load().config
    small = replace(
        loaded,
        transport=replace(loaded.transport, max_frame_bytes=_SMALL_FRAME_BYTES, cast_direct=1),
        fabric=replace(loaded.fabric, order=fabrics),
    )
    with controlled(small, num_hosts=2) as hosts:
        procs = hosts.spawn_procs(per_host={"p": 2})
        settle(procs)
        every = procs.spawn("echo", Receiver)
        data = np.arange(_LONG_BYTES // 8, dtype=np.int64).tobytes()
        one = every.slice(hosts=0, p=0)
        for value in (data, bytearray(data), list(range(1 << 40, (1 << 40) + (2 << 20)))):
            returned = one.echo.call_one(value).get(_PATIENCE_S)
            assert returned == value  # not in a message of pytest, which would show it
        sums = every.sum_of.call(data).get(_PATIENCE_S)
        assert list(sums.values()) == [(len(data), zlib.crc32(data))] * 4


@pytest.mark.parametrize("threshold", ["auto", "inf"])
def test_a_value_that_an_actor_cannot_hold_is_an_error_and_ends_nothing(
    threshold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where UCX takes it for faster to send any message before the receiver has memory for it, as 1.18 does."""
    monkeypatch.setenv("UCX_RNDV_THRESH", threshold)
    with controlled(load().config, num_hosts=1) as hosts:
        procs = hosts.spawn_procs()
        settle(procs)
        echo, other = procs.spawn("echo", Receiver), procs.spawn("other", Receiver)
        echo.limit.call_one(2 * _LARGE_BYTES).get(_PATIENCE_S)
        for value in (bytes(3 * _LARGE_BYTES), bytearray(3 * _LARGE_BYTES)):
            with pytest.raises(MemoryError, match="no memory for a message of 210 MiB"):
                echo.sum_of.call_one(value).get(_PATIENCE_S)
        with pytest.raises(MemoryError):
            procs.spawn("third", Receiver).echo.call_one({"a": [bytes(3 * _LARGE_BYTES)]}).get(_PATIENCE_S)
        small = b"x" * (1 << 20)
        for actor in (echo, other):
            assert actor.sum_of.call_one(small).get(_PATIENCE_S) == (1 << 20, zlib.crc32(small))


@pytest.mark.slow  # half a gigabyte, there and back
@pytest.mark.parametrize("fabrics", [("ucx", "tcp"), ("tcp",)], ids=["ucx", "tcp"])
def test_a_large_state_dict_goes_to_an_actor_and_back(fabrics: tuple[Fabric, ...]) -> None:
    """The actor, which keeps nothing, never has more than one copy of it beside the one that arrives."""
    torch = pytest.importorskip("torch")
    state = {f"layers.{layer}.weight": torch.full((4096, 4096), float(layer)) for layer in range(_NUM_LAYERS)}
    loaded = load().config
    with controlled(replace(loaded, fabric=replace(loaded.fabric, order=fabrics)), num_hosts=1) as hosts:
        procs = hosts.spawn_procs()
        settle(procs)
        echo = procs.spawn("echo", Receiver)
        echo.echo.call_one(torch.zeros(1)).get(_PATIENCE_S)
        torch_bytes = echo.peak_bytes.call_one().get(_PATIENCE_S)  # 0.2 GB, or 0.5 with what it has for GPUs
        returned = echo.echo.call_one(state).get(10 * _PATIENCE_S)
        assert isinstance(returned, dict) and returned.keys() == state.keys()
        assert all(torch.equal(returned[name], tensor) for name, tensor in state.items())
        peak_bytes = echo.peak_bytes.call_one().get(_PATIENCE_S)
        assert peak_bytes - torch_bytes < _NUM_LAYERS * 2**26 + 0.3e9
