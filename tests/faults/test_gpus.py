"""GPUs that fail: the death says so, and later procs of that host do not get them."""

from __future__ import annotations

import os

import pytest

from monarch_hpc import Actor, DeathKind, ProcDied, SpawnError, endpoint
from monarch_hpc.agent.resources.gpu_errors import find_gpu_error
from monarch_hpc.config.load import load
from monarch_hpc.testing.faults import Faulty
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class Viewer(Actor):
    """Sees the GPUs of its proc."""

    @endpoint
    def gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


def test_a_gpu_that_failed_is_not_given_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr("monarch_hpc.actor.unhandled_fault_hook", lambda _failure: None)
    with controlled(load({}).config, 1) as hosts:
        for number, left in enumerate(("4", None)):
            procs = hosts.spawn_procs({"gpus": 1 if number else 2})
            procs.initialized.get(_PATIENCE_S)
            settle(procs)
            last = procs.spawn("faulty", Faulty).slice(gpus=-1)
            with pytest.raises(ProcDied) as caught:
                last.suffer.call_one("lose_gpu").get(_PATIENCE_S)
            assert caught.value.kind is DeathKind.GPU
            assert f"GPU {5 - number} failed, and is not given out again" in caught.value.cause
            procs.stop().get(_PATIENCE_S)
            if left is not None:
                with hosts.spawn_procs({"gpus": 2}) as later:
                    seen = later.spawn("viewer", Viewer).gpus.call().get(_PATIENCE_S)
                    assert set(seen.values()) == {left}
        with pytest.raises(SpawnError, match="all GPUs of this host have failed: RuntimeError: CUDA error"):
            hosts.spawn_procs().initialized.get(_PATIENCE_S)


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", True),
        ("ncclUnhandledCudaError: Call to CUDA function failed: CUDA_ERROR_ECC_UNCORRECTABLE", True),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", True),
        ("hipErrorECCNotCorrectable", True),
        ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB", False),
        ("CUDA error: device-side assert triggered", False),
        ("CUDA error: an illegal memory access was encountered", False),
        ("my Xidel is fine", False),
        ("", False),
    ],
)
def test_only_broken_hardware_counts(line: str, failed: bool) -> None:
    assert bool(find_gpu_error(["before", line, "after"])) is failed
