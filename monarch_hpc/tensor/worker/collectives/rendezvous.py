"""The rendezvous of process groups, over the channels of actors."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from monarch_hpc.actor.future import Future
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.tensor.worker.collectives.waits import Waits
from monarch_hpc.tensor.worker.control import TensorControl

__all__ = ["ChannelStore"]

_Store: Any = dist.Store  # type: ignore[attr-defined]  # torch does not declare it


class ChannelStore(_Store):  # type: ignore[misc]  # torch does not declare it
    """A rendezvous over our channels: torch's own would be an open port, which other hosts may not reach.

    What it stores is on its way when a method returns; later calls on the same store find it.

    Args:
        control: the control actor that keeps the entries.
        prefix: the epoch, and what its keys begin with.
        timeout_s: longest wait for an answer.
        waits: of the epoch.
    """

    def __init__(self, control: ActorMesh[TensorControl], prefix: str, timeout_s: float, waits: Waits) -> None:
        super().__init__()
        self._control = control
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._waits = waits
        self._awaited: dict[str, bytes] = {}

    def _ask(self, future: Future[Any]) -> Any:
        return self._waits.ask(future.get, self._timeout_s)

    def set(self, key: str, value: bytes | str) -> None:
        """Store an entry."""
        self._control.set.broadcast(self._prefix + key, _packed(value))

    def multi_set(self, keys: list[str], values: list[bytes | str]) -> None:
        """Store entries."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: bytes | str) -> None:
        """Store an entry, or more of it."""
        self._control.append.broadcast(self._prefix + key, _packed(value))

    def get(self, key: str) -> bytes:
        """Wait for an entry."""
        found = self._awaited.pop(key, None)
        return self.multi_get([key])[0] if found is None else found

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Wait for entries."""
        found: list[bytes] = self._ask(self._control.get.call_one([self._prefix + key for key in keys]))
        return found

    def add(self, key: str, amount: int) -> int:
        """Add to a counter."""
        return int(self._ask(self._control.add.call_one(self._prefix + key, amount)))

    def check(self, keys: list[str]) -> bool:
        """Tell whether all entries are there."""
        return bool(self._ask(self._control.has.call_one([self._prefix + key for key in keys])))

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        """Wait for entries, which the next `get` of each returns: gloo asks for each peer's address in this way."""
        self._awaited.update(zip(keys, self.multi_get(keys), strict=True))

    def has_extended_api(self) -> bool:
        """Tell torch to ask for several entries at once, and to append."""
        return True


def _packed(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
