"""The backend of torch.distributed with the process groups of `gloo`, and the default group of a proc that has it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from monarch_hpc.tensor.worker.collectives.devices import LIBRARIES, DeviceBackend, DeviceBackends, DeviceLibrary
from monarch_hpc.tensor.worker.collectives.gloo import GlooBackend, GlooDevice
from monarch_hpc.tensor.worker.collectives.group import BACKEND, RankGroup
from monarch_hpc.tensor.worker.collectives.named import NamedGroup
from monarch_hpc.tensor.worker.collectives.routes import CollectiveRoutes
from monarch_hpc.tensor.worker.collectives.waits import Waits

__all__ = ["DefaultGroups", "making", "register_backend"]

Make = Callable[[Any], NamedGroup]
"""Makes a group of torch's options."""

making: list[Make] = []
"""Those of the `World`s that are entered, of which the last one makes groups."""

_default: list[Make] = []
"""That of the default groups of this proc, if it has some: makes groups outside worlds."""


def register_backend() -> None:
    """Make the backend known to torch, under the name `group.BACKEND`; in this process, once."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["cpu", "cuda"])


def _make(options: Any, _backend_options: Any) -> Any:
    return (making or _default)[-1](options)


class DefaultGroups:
    """The default process group of this proc, and those that its code makes of it: one life of torch.distributed.

    Args:
        address: this proc's IP address, at which other ranks dial it.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._waits = Waits()
        self._backends: list[GlooBackend] = []
        self._devices = DeviceBackends()
        self._device: GlooDevice | None = None

    def join(self, store: Any, rank: int, num: int, timeout: timedelta) -> None:
        """Join the default group; returns when all ranks have.

        Args:
            store: the rendezvous.
            rank: of this proc.
            num: number of ranks.
            timeout: limit of set-up and collectives.
        """
        register_backend()
        _default[:] = [self._make_group]
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=num, timeout=timeout)

    def _make_group(self, torch_options: Any) -> NamedGroup:
        if self._device is None:
            self._device = GlooDevice(self._address)
        store, rank, num = torch_options.store, torch_options.group_rank, torch_options.group_size
        # Unproven: torch's own rendezvous, an open port, could be asked for the key.
        backend = self._device.join(store, rank, num, torch_options.timeout, self._waits, proven=False)
        self._backends.append(backend)

        def connect(kind: str, library: DeviceLibrary | None) -> DeviceBackend | None:
            on_devices: Any = dist.PrefixStore(f"{kind}/", store)  # type: ignore[attr-defined]  # torch does not declare it
            timeout_s = torch_options.timeout.total_seconds()
            return self._devices.meet(kind, library, on_devices, rank, num, self._waits, timeout_s)

        return RankGroup(CollectiveRoutes(backend, LIBRARIES, connect), rank, num)

    def end(self, cause: str) -> None:
        """End all waits in these groups, and all to come; from any thread."""
        if self._make_group in _default:
            _default.clear()
        self._waits.abort(cause)
        self._devices.abort()

    def retire(self) -> None:
        """Give up the groups, which torch has forgotten."""
        for backend in self._backends:
            backend.retire()
        self._backends.clear()
        self._devices.retire()
