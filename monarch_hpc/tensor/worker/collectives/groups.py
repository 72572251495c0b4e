"""Process groups between ranks of a mesh, which an abort ends."""

from __future__ import annotations

import contextlib
import datetime
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from time import monotonic, sleep
from typing import Any

import torch

from monarch_hpc.core.errors import MonarchError
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.tensor.stream.records import CollectiveSpec
from monarch_hpc.tensor.worker.collectives.devices import LIBRARIES, DeviceBackend, DeviceBackends, DeviceLibrary
from monarch_hpc.tensor.worker.collectives.gloo import GlooBackend, GlooDevice
from monarch_hpc.tensor.worker.collectives.group import RankGroup
from monarch_hpc.tensor.worker.collectives.named import NamedGroup
from monarch_hpc.tensor.worker.collectives.reductions import alone, reduced
from monarch_hpc.tensor.worker.collectives.rendezvous import ChannelStore
from monarch_hpc.tensor.worker.collectives.routes import CollectiveRoutes
from monarch_hpc.tensor.worker.collectives.sockets import cut_connections
from monarch_hpc.tensor.worker.collectives.staging import to_device
from monarch_hpc.tensor.worker.collectives.waits import Waits
from monarch_hpc.tensor.worker.control import TensorControl
from monarch_hpc.tensor.worker.divergence import FailedFrame

__all__ = ["Groups"]

_SETTLE_S = 5.0
"""Longest wait for gloo to close connections that were cut: its one thread for them needs milliseconds."""

_SETTLE_STEP_S = 0.002
_MAX_SENT = 256
"""Messages to other ranks that are kept, as gloo reads their memory until they have left, which only a wait tells.

More than the records of a frame send, so that such a wait never is for a frame that the program has not sent yet.
"""

_MAX_SENT_BYTES = 64 << 20
"""Likewise of their bytes: a batch's activations in a pipeline are less, and a rank has them beside its model."""

_LAST_WRITE_S = 0.2
"""Longest wait for a thread of gloo that may be adding up what came before a cut."""


class Groups:
    """The process groups of one rank.

    Args:
        rank: rank in the mesh of procs.
        addresses: IP addresses by rank.
        control: the control actors of all ranks, along one dimension.
        places: places of the ranks in *control*.
        timeout_s: longest wait for the other ranks of a collective.

    Attributes:
        timeout_s: likewise.
        offset: what is added to the key of an engine to find this rank's worker in its process.
        epoch: number of attempts to have a mesh, of which each has groups of its own.
        cause: why there are no more collectives; empty if there are.
        libraries: of collectives on devices, by type of device.
    """

    libraries: Mapping[str, DeviceLibrary] = LIBRARIES

    def __init__(
        self,
        rank: int,
        addresses: dict[int, str],
        control: ActorMesh[TensorControl],
        places: dict[int, int],
        timeout_s: float,
    ) -> None:
        self._rank = rank
        self._addresses = addresses
        self._control = control
        self._places = places
        self.timeout_s = timeout_s
        self.offset = 0
        self._groups: dict[tuple[int, ...], NamedGroup] = {}
        self._device: GlooDevice | None = None
        self._ports: set[int] = set()
        self._met: set[int] = set()
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        self._sent_bytes = 0
        self.epoch = 0
        self._ended = -1
        self._lock = Lock()
        self._waits = Waits()
        self._backends: list[GlooBackend] = []
        self._devices = DeviceBackends()
        self.cause = ""

    def abort(self, cause: str, epoch: int | None = None) -> bool:
        """End the collectives under way and all to come of an epoch, or of this one; from any thread.

        Waits for them end without gloo's help, which does not wake all. Its connections are cut, so that nothing
        arrives in their tensors any more.

        Returns:
            Whether there is no later epoch.
        """
        with self._lock:
            ended = self.epoch if epoch is None else epoch
            if ended < self.epoch:
                return False
            self.cause, self._ended = cause, max(self._ended, ended)
            self._waits.abort(cause)
            cut_connections(set(self._ports))
            self._devices.abort()
            return True

    @property
    def waits(self) -> Waits:
        """The waits of this epoch, for one that is not gloo's: an abort ends it, too."""
        return self._waits

    def is_over(self, epoch: int) -> bool:
        """Tell whether an epoch has ended."""
        return epoch < self.epoch or (epoch == self.epoch and bool(self.cause))

    def tell_failed(self, ranks: tuple[int, ...], frame: FailedFrame) -> None:
        """Tell the next one of some ranks in which operations this rank failed."""
        after = ranks[(ranks.index(self._rank) + 1) % len(ranks)]
        if after != self._rank:
            with contextlib.suppress(MonarchError):  # it is gone, which the program learns
                self._control.slice(procs=self._places[after]).note_failed.broadcast(frame)

    def settle(self) -> None:
        """Return when nothing writes to tensors any more after an abort, which this rank has seen: it is in no wait."""
        if not self.cause:
            return
        until = monotonic() + _SETTLE_S
        while self._ports and cut_connections(set(self._ports)) and monotonic() < until:
            sleep(_SETTLE_STEP_S)  # until gloo has closed them; perhaps it was connecting at the abort
        until = monotonic() + _LAST_WRITE_S
        for one in self._backends:
            one.settle(until)
        self._devices.settle(monotonic() + _SETTLE_S)

    def begin(self, epoch: int, addresses: dict[int, str]) -> None:
        """Begin anew: groups are made again, with others that do so, too.

        Args:
            epoch: number of this attempt, the same on all ranks.
            addresses: IP addresses by rank.

        Raises:
            RuntimeError: it has ended already, before this rank came to it.
        """
        with self._lock:
            if epoch <= self._ended:
                raise RuntimeError(self.cause)
            self.settle()
            self._waits.abort(f"this group is of epoch {self.epoch} of its mesh, which has ended")
            self._waits = Waits()
            self._give_up()
            self._device = None  # strangers may have sent its listener the numbers of connections to come
            self._ports.clear()
            self._met.clear()
            self.epoch, self._addresses, self.cause = epoch, addresses, ""

    def close(self, cause: str) -> None:
        """Abort, and give up all groups; of the worker's thread."""
        self.abort(cause)
        self.settle()
        self._give_up()

    def _give_up(self) -> None:
        for one in self._backends:
            one.retire()
        self._devices.retire()
        self._backends.clear()
        self._groups.clear()
        self._sent.clear()
        self._sent_bytes = 0

    def agree(self, ranks: tuple[int, ...], *numbers: int) -> list[tuple[int, int]]:
        """Exchange numbers; return the lowest and the highest of each. Nobody gets an answer before all have asked."""
        if len(ranks) == 1:
            return [(number, number) for number in numbers]
        both = torch.tensor([*numbers, *(-number for number in numbers)])
        self.of(ranks).highest(both).wait()
        found = both.tolist()
        return [(-low, high) for high, low in zip(found[: len(numbers)], found[len(numbers) :], strict=True)]

    def drain(self) -> None:
        """Wait until the collectives on devices have ended, so that a rank may read what depends on others.

        Raises:
            RuntimeError: one has failed, or is late; or the cause of an abort.
        """
        self._devices.drain()

    def flush_sends(self, num: int = 0, num_bytes: int = 0) -> None:
        """Wait until what was sent has left, the oldest first, but for as many messages and bytes."""
        while len(self._sent) > num or self._sent_bytes > num_bytes:
            work, sent = self._sent.popleft()
            self._sent_bytes -= sent.nbytes
            work.wait()

    def of(self, ranks: tuple[int, ...]) -> NamedGroup:
        """The process group of some ranks, of which this is one."""
        if self.cause:
            raise RuntimeError(self.cause)
        group = self._groups.get(ranks)
        if group is None:
            group = self._groups[ranks] = self._join(ranks)
        return group

    def store(self, rank: int, prefix: str) -> ChannelStore:
        """A rendezvous on a rank, whose keys begin with *prefix*, in this epoch."""
        control = self._control.slice(procs=self._places[rank])
        return ChannelStore(control, f"{self.epoch}/{prefix}", self.timeout_s, self._waits)

    def _join(self, ranks: tuple[int, ...]) -> NamedGroup:
        store = self.store(ranks[0], "-".join(map(str, ranks)) + "/")
        is_known = self._met.issuperset(ranks)
        if self._device is None:
            self._device = GlooDevice(self._addresses[self._rank])
        # Always: another rank may not have met all of them, and waits for it.
        store.set(f"port/{self._rank}", ",".join(map(str, self._device.ports)))
        if not is_known:
            for own in store.multi_get([f"port/{rank}" for rank in ranks]):
                self._ports |= {int(port) for port in own.decode().split(",") if port}
            self._met.update(ranks)
        place, num, waits = ranks.index(self._rank), len(ranks), self._waits
        timeout = datetime.timedelta(seconds=self.timeout_s)
        backend = self._device.join(store, place, num, timeout, waits, proven=True)
        self._backends.append(backend)
        return RankGroup(CollectiveRoutes(backend, self.libraries, partial(self._connect, ranks, waits)), place, num)

    def _connect(
        self, ranks: tuple[int, ...], waits: Waits, kind: str, library: DeviceLibrary | None
    ) -> DeviceBackend | None:
        """Meet the other ranks for collectives on devices; of the worker's thread, or of one that it waits for."""
        waits.check()  # the group may be of an epoch that has ended
        store = self.store(ranks[0], f"{kind}/{'-'.join(map(str, ranks))}/")
        return self._devices.meet(kind, library, store, ranks.index(self._rank), len(ranks), waits, self.timeout_s)

    # ---- reductions ----

    def reduce(
        self, spec: CollectiveSpec, given: torch.Tensor | None, like: torch.Tensor, root: int
    ) -> tuple[torch.Tensor, int]:
        """Take part in a reduction.

        Args:
            spec: the reduction.
            given: this rank's value; None if it failed.
            like: a tensor of the recorded shape and type in host memory, whose elements do not matter.
            root: sequence number of the failure plus 1; 0 if there is none.

        Returns:
            The result, on the device of *given*, or in host memory; and the largest *root* of all ranks.
        """
        ranks = next(ranks for ranks in spec.groups if self._rank in ranks)
        if len(ranks) == 1:
            return alone(spec, torch.zeros_like(like) if given is None else given.detach().contiguous()), root
        result, highest = reduced(self.of(ranks), len(ranks), spec, given, like, root)
        return (result if given is None else to_device(result, given.device)), highest

    # ---- copies between ranks ----

    def send(self, ranks: tuple[int, ...], targets: Sequence[int], tag: int, value: torch.Tensor, root: int) -> None:
        """Begin to send a value, which must not change any more, with *root* as in `reduce` before it.

        Waits for earlier ones if too many are kept. Ranks send and receive in one order, so nobody waits for this one.
        """
        group = self.of(ranks)
        if len(self._sent) >= _MAX_SENT or self._sent_bytes >= _MAX_SENT_BYTES:
            self.flush_sends(_MAX_SENT // 2, _MAX_SENT_BYTES // 2)
        for target in targets:
            place = ranks.index(target)
            for part in (torch.tensor([root]), value):
                self._sent.append((group.send([part], place, tag), part))
                self._sent_bytes += part.nbytes

    def receive(self, ranks: tuple[int, ...], source: int, tag: int, like: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Receive a value of the shape and type of *like*; return it and the sender's *root*."""
        group, place = self.of(ranks), ranks.index(source)
        root, value = torch.zeros(1, dtype=torch.int64), torch.empty_like(like)
        group.recv([root], place, tag).wait()
        group.recv([value], place, tag).wait()
        return value, int(root)
