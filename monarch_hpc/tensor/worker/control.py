"""The second actor of each proc with mesh tensors: it answers while the worker sits in an operation."""

from __future__ import annotations

import os
from typing import NoReturn

from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.tensor.stream.holdings import WorkerPlace
from monarch_hpc.tensor.worker.divergence import FailedFrame
from monarch_hpc.tensor.worker.sharing.local import end_worker, forget_worker, note_failed, place_of, when_stopped

__all__ = ["TensorControl"]

_LEFT = 70


class TensorControl(Actor):
    """Rendezvous of process groups, the call that reports a death, and the end of collectives.

    Args:
        key: identifies the engine that spawned it.
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self._entries: dict[str, bytes] = {}
        self._waiting: list[tuple[list[str], ResponsePort]] = []
        self._cause = ""
        self._ended = -1

    @endpoint(explicit_response_port=True)
    def watch(self, port: ResponsePort) -> None:
        """Answer when the worker stops by itself, with its epoch and the cause; fail when this proc dies."""
        when_stopped(self._key, port.send)

    @endpoint
    def place(self) -> WorkerPlace:
        """Tell where the worker is."""
        return place_of(self._key)

    @endpoint
    def set(self, key: str, value: bytes) -> None:
        """Store an entry of a rendezvous, and answer those who wait for it."""
        self._store(key, value)

    @endpoint
    def append(self, key: str, value: bytes) -> None:
        """Store an entry, or more of it."""
        self._store(key, self._entries.get(key, b"") + value)

    def _store(self, key: str, value: bytes) -> None:
        self._entries[key] = value
        self._answer()

    @endpoint
    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which is kept as text, as torch's own stores do."""
        number = int(self._entries.get(key, b"0")) + amount
        self._entries[key] = str(number).encode()
        return number

    @endpoint(explicit_response_port=True)
    def get(self, port: ResponsePort, keys: list[str]) -> None:
        """Answer with entries, of one epoch, as soon as all are there."""
        if keys and _epoch_of(keys[0]) <= self._ended:
            port.exception(RuntimeError(self._cause))
            return
        self._waiting.append((keys, port))
        self._answer()

    def _answer(self) -> None:
        """Answer those whose entries are there."""
        waiting, self._waiting = self._waiting, []
        for keys, port in waiting:
            if all(key in self._entries for key in keys):
                port.send([self._entries[key] for key in keys])
            else:
                self._waiting.append((keys, port))

    @endpoint
    def has(self, keys: list[str]) -> bool:
        """Tell whether all entries are there."""
        return all(key in self._entries for key in keys)

    @endpoint
    def abort(self, cause: str, epoch: int) -> None:
        """End the collectives of an epoch on this rank, with those of earlier ones; later ones are not touched."""
        if epoch < self._ended:
            return
        self._cause, self._ended = cause, epoch
        self._entries = {key: value for key, value in self._entries.items() if _epoch_of(key) > epoch}
        waiting, self._waiting = self._waiting, []
        for keys, port in waiting:
            if _epoch_of(keys[0]) <= epoch:
                port.exception(RuntimeError(cause))
            else:
                self._waiting.append((keys, port))
        end_worker(self._key, cause, epoch)

    @endpoint
    def note_failed(self, frame: FailedFrame) -> None:
        """Learn in which operations another rank failed, whose collectives this one may wait in."""
        note_failed(self._key, frame)

    @endpoint
    def leave(self) -> NoReturn:
        """End this process, whose worker does not answer: what it does later must not count."""
        os._exit(_LEFT)

    def __cleanup__(self, _error: BaseException | None) -> None:
        forget_worker(self._key)


def _epoch_of(key: str) -> int:
    return int(key.partition("/")[0])
