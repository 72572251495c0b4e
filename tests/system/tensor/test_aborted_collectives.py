"""Waits in gloo that an abort ends, also where gloo would not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from monarch_hpc.testing import wait_until
from tests.system.tensor.file_groups import BOTH, FileGroups

_ELEMENTS = 1 << 24
_LIMIT_S = 12.0
"""gloo's own: a wait that an abort does not end lasts as long."""

_PATIENCE_S = 8.0

_untyped: Any = dist  # does not declare its stores, nor its options


def _broadcast(group: Any, tensor: torch.Tensor) -> Any:
    options = _untyped.BroadcastOptions()
    options.rootRank = 1
    return group.broadcast([tensor], options)


def _receive(group: Any, tensor: torch.Tensor) -> Any:
    return group.recv([tensor], 1, 0)


def _send(group: Any, tensor: torch.Tensor) -> Any:
    return group.send([tensor], 0, 0)


_KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "broadcast": (_broadcast, _broadcast),
    "receive": (_receive, _send),
}


def _be_the_other_rank(path: str, kind: str) -> None:
    group = FileGroups(1, path, _LIMIT_S).of(BOTH)
    while True:
        _KINDS[kind][1](group, torch.ones(_ELEMENTS)).wait()


@contextmanager
def _other_rank(*arguments: str) -> Iterator[int]:
    peer = subprocess.Popen([sys.executable, "-m", __name__, *arguments])
    try:
        yield peer.pid
    finally:
        peer.kill()
        peer.wait()


@pytest.mark.parametrize("kind", _KINDS)
def test_a_wait_whose_message_stops_in_its_middle_ends(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    groups = FileGroups(0, path, _LIMIT_S)
    with ThreadPoolExecutor() as pool, _other_rank(path, kind) as peer:
        group = groups.of(BOTH)
        while True:
            tensor = torch.zeros(_ELEMENTS)
            work = _KINDS[kind][0](group, tensor)
            wait_until("a part of a message", lambda: bool(tensor[0]), interval_s=0)  # noqa: B023 called at once
            os.kill(peer, signal.SIGSTOP)
            if not tensor[-1]:
                break  # its head has come, and a part of its body
            os.kill(peer, signal.SIGCONT)
            work.wait()
        waiting = pool.submit(work.wait)
        assert groups.abort("rank 1 does not answer")
        with pytest.raises(RuntimeError, match="rank 1 does not answer"):
            waiting.result(_PATIENCE_S)
        groups.settle()
        assert not tensor[-1]
        with pytest.raises(RuntimeError, match="rank 1 does not answer"):
            _KINDS[kind][0](group, tensor)
        pool.submit(groups.begin, 1, {}).result(_PATIENCE_S)  # which does not wait for gloo's thread either
        with pytest.raises(RuntimeError, match="rank 1 does not answer"):
            group.again().barrier()
        groups.close("the test is over")


class _Alone(_untyped.Store):  # type: ignore[misc]  # torch does not declare it
    """A rendezvous to which the other rank has told its ports, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.left = Event()
        self.is_asked = Event()

    def set(self, key: str, value: object) -> None: ...

    def multi_get(self, keys: list[str]) -> list[bytes]:
        if keys[0].startswith("port/"):
            return [b"1"] * len(keys)
        self.is_asked.set()
        self.left.wait()
        raise RuntimeError("the test is over")

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        self.multi_get(keys)


def test_a_rank_that_connects_to_one_that_never_comes_is_freed() -> None:
    store = _Alone()

    class Lonely(FileGroups):
        def store(self, _rank: int, prefix: str) -> Any:
            return store

    groups = Lonely(0, "", _LIMIT_S)
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(groups.of, BOTH)
        assert store.is_asked.wait(_PATIENCE_S)
        groups.abort("rank 1 died")
        with pytest.raises(RuntimeError, match="rank 1 died"):
            joining.result(_PATIENCE_S)
        store.left.set()
        groups.close("the test is over")


if __name__ == "__main__":
    _be_the_other_rank(*sys.argv[1:])
