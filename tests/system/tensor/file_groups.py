"""Process groups of two ranks without actors."""

from __future__ import annotations

from datetime import timedelta
from threading import Event
from typing import Any

import torch
import torch.distributed as dist

from monarch_hpc.tensor.worker.collectives.devices import DeviceLibrary
from monarch_hpc.tensor.worker.collectives.groups import Groups
from monarch_hpc.tensor.worker.collectives.nccl import Nccl, group_with
from monarch_hpc.tensor.worker.collectives.sockets import cut_connections, listening_ports

__all__ = ["BOTH", "FileGroups", "GlooLibrary"]

BOTH = (0, 1)

_untyped: Any = dist  # does not declare its stores


class GlooLibrary:
    """Other groups of gloo, where NCCL's would be; see `devices.DeviceLibrary`.

    Args:
        identity: of this rank's device.
        dtypes: types of elements that it takes.
    """

    name = "NCCL"
    collectives = frozenset(
        name for name in Nccl.collectives if "reduce_scatter" not in name
    )  # gloo's never say an end
    reductions = Nccl.reductions

    def __init__(self, identity: str, dtypes: frozenset[torch.dtype] = Nccl.dtypes) -> None:
        self._identity = identity
        self.dtypes = dtypes
        self.made: list[Any] = []

    def identity(self) -> str:
        """See `devices.DeviceLibrary`."""
        return self._identity

    def connect(self, store: Any, place: int, num: int, timeout: timedelta, device: torch.device) -> Any:
        """Likewise."""
        gloo = _untyped.ProcessGroupGloo
        options = gloo._Options()
        before = listening_ports()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        ports = listening_ports() - before
        options._timeout = timeout
        group = group_with(gloo(store, place, num, options), device.type, "GLOO", store, place, num)
        self.made.append(_Abortable(group, ports))
        return self.made[-1]

    def failure(self, _group: Any) -> str:
        """Likewise: gloo watches nothing."""
        return ""


class _Abortable:
    """A group whose abort ends its connections; gloo's own does nothing. Like NCCL's it gives works if asked to."""

    def __init__(self, group: Any, ports: set[int]) -> None:
        self._group = group
        self._ports = ports
        self.is_aborted = Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)

        def call(*arguments: Any) -> Any:
            work = found(*arguments)
            return work if arguments[-1].asyncOp else None

        return call if name in Nccl.collectives else found

    def abort(self) -> None:
        """End them."""
        cut_connections(self._ports)
        self.is_aborted.set()


class FileGroups(Groups):
    """The groups of one of two ranks, which meet by a file.

    Args:
        rank: the rank.
        path: the file.
        limit_s: see the base class.
        library: for tensors in host memory, as if that were a device's; None for none.
    """

    def __init__(self, rank: int, path: str, limit_s: float, library: DeviceLibrary | None = None) -> None:
        super().__init__(rank, dict.fromkeys(BOTH, "127.0.0.1"), None, {}, limit_s)  # type: ignore[arg-type]  # no actors
        self._path = path
        if library is not None:
            self.libraries = {"cpu": library}

    def store(self, _rank: int, prefix: str) -> Any:
        """See base class."""
        return _untyped.PrefixStore(f"{self.epoch}/{prefix}", _untyped.FileStore(self._path, 2))
