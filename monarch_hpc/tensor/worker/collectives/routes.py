"""The way of a collective: gloo in host memory, a library of a device for its tensors, or by way of host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map

from monarch_hpc.tensor.worker.collectives.devices import DeviceBackend, DeviceLibrary
from monarch_hpc.tensor.worker.collectives.gloo import GlooBackend
from monarch_hpc.tensor.worker.collectives.staging import HOST, device_of, present_stream, to_host

__all__ = ["CollectiveRoutes"]

_IN_PLACE = frozenset({"allreduce", "allreduce_coalesced", "reduce", "broadcast"})
"""Collectives whose first argument is both given and result; of others it is the result, of `send` it is given."""


class CollectiveRoutes:
    """The backends of a group of one rank.

    Args:
        host: gloo's.
        libraries: by type of device.
        connect: meets the other ranks for collectives of a library on a type of device; see `devices.meet`.

    Attributes:
        host: likewise.
    """

    def __init__(
        self,
        host: GlooBackend,
        libraries: Mapping[str, DeviceLibrary],
        connect: Callable[[str, DeviceLibrary | None], DeviceBackend | None],
    ) -> None:
        self.host = host
        self._libraries = libraries
        self._connect = connect
        self._connected: dict[str, DeviceBackend | None] = {}
        self._lock = Lock()

    def issue(self, name: str, *arguments: Any) -> Any:
        """Begin a collective, where its tensors are."""
        given = _device_among(arguments)
        kind = "" if given is None else given.type
        if given is None or (kind == HOST.type and kind not in self._libraries):
            return self.host.issue(name, *arguments)
        dtypes = {leaf.dtype for leaf in tree_iter(arguments) if isinstance(leaf, torch.Tensor)}
        device = self._device(kind, name, dtypes, getattr(arguments[-1], "reduceOp", None))
        if device is not None:
            return device.issue(name, *arguments)
        hosted, back = _staged(name, arguments, given)
        return self.host.issue(name, *hosted, after=back)

    def issue_to_peer(self, name: str, tensors: list[torch.Tensor], *arguments: Any) -> Any:
        """Begin a send or a receive, which goes by way of host memory."""
        given = tensors[0].device
        if given.type == HOST.type and HOST.type not in self._libraries:
            return self.host.issue_to_peer(name, tensors, *arguments)
        hosted, back = _staged(name, (tensors, *arguments), given)
        return self.host.issue_to_peer(name, *hosted, after=back)

    def place_of(self, kind: str, name: str, dtypes: set[torch.dtype], reduction: Any) -> torch.device:
        """Where a collective on tensors of a type of device is done: there, or in host memory."""
        return HOST if self._device(kind, name, dtypes, reduction) is None else device_of(kind)

    def _device(self, kind: str, name: str, dtypes: set[torch.dtype], reduction: Any) -> DeviceBackend | None:
        """The backend of a type of device, made at the first call; None if it cannot do this collective.

        The ranks of a group make their calls in one order, so that all make it at the same point.
        """
        if kind == HOST.type and kind not in self._libraries:
            return None
        with self._lock:
            if kind not in self._connected:
                self._connected[kind] = self._connect(kind, self._libraries.get(kind))
            found = self._connected[kind]
        return found if found is not None and found.has(name, dtypes, reduction) else None


def _device_among(arguments: Any) -> torch.device | None:
    """The device of the first tensor in nested lists; None if there is none."""
    for one in arguments:
        if isinstance(one, torch.Tensor):
            return one.device
        if isinstance(one, (list, tuple)) and (found := _device_among(one)) is not None:
            return found
    return None


def _staged(name: str, arguments: tuple[Any, ...], device: torch.device) -> tuple[tuple[Any, ...], Callable[[], None]]:
    """The arguments in host memory, and what copies results back to where they belong, on any thread."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def result(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        host = to_host(leaf) if name in _IN_PLACE else torch.empty(leaf.shape, dtype=leaf.dtype)
        pairs.append((leaf, host))
        return host

    def given(leaf: Any) -> Any:
        return to_host(leaf) if isinstance(leaf, torch.Tensor) else leaf

    first, *others = arguments
    hosted = tree_map(given if name == "send" else result, first), *(tree_map(given, one) for one in others)

    entered = present_stream(device)  # their memory may have been of others before, which this stream still uses

    def back() -> None:
        _ = hosted  # gloo reads and writes that memory until it is done
        with torch.no_grad(), entered():
            for tensor, host in pairs:
                tensor.detach().copy_(host)

    return hosted, back
