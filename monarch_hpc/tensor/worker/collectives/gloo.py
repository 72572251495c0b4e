"""Process groups over gloo whose waits an abort ends, and whose ranks prove that they belong to them."""

from __future__ import annotations

import contextlib
import hmac
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any

import torch

from monarch_hpc.core.process.thread import Thread
from monarch_hpc.tensor.worker.collectives.sockets import admit_connections, listening_ports
from monarch_hpc.tensor.worker.collectives.waits import CollectiveWork, PeerWork, Waits

__all__ = ["GlooBackend", "GlooDevice"]

_c10d: Any = torch._C._distributed_c10d

_PROOF = "proof"
"""The entry of the rendezvous with the key of the proofs."""

_FORMED = "formed/"
"""Begins the entries of ranks that have made their connections."""

_PROOF_TAG = 0
_PROOF_LIMIT = timedelta(seconds=60)
"""Longest wait for the proof of a rank. All have made their connections then, so that 32 bytes take milliseconds, or a
descheduled process some seconds; a stranger who is silent is found by it."""

_SHORTEST_S = 0.001
"""A wait of no time would have no limit."""

_UNWAITED = 64
"""Number of collectives under way from which on those are forgotten that have ended and that nobody has waited for."""


class GlooDevice:
    """Where gloo listens and dials, for the groups of one rank.

    Whoever connects to its listener and sends the right small number passes for another rank; and all others stay
    connected, even when they close, until this process has no descriptor left. So the listener is closed but while a
    group is being made, and those whose rendezvous is over channels of ours have their ranks prove themselves.

    Args:
        address: this rank's IP address, at which other ranks dial it.

    Attributes:
        ports: on which it listens.
    """

    def __init__(self, address: str) -> None:
        before = listening_ports()
        self._device = _c10d.ProcessGroupGloo.create_device(hostname=address)
        self.ports = listening_ports() - before
        self._lock = Lock()
        self._num_open = 0
        self._admit(False)

    def join(self, store: Any, place: int, num: int, timeout: timedelta, waits: Waits, *, proven: bool) -> GlooBackend:
        """Join a group; returns when all its ranks have.

        Args:
            store: the rendezvous.
            place: this rank's place in the group.
            num: number of ranks.
            timeout: limit of set-up and collectives.
            waits: those of the group.
            proven: whether ranks prove themselves, which they do by a key from the rendezvous.

        Raises:
            RuntimeError: gloo failed; or a stranger has connected in the place of a rank.
        """
        options = _c10d.ProcessGroupGloo._Options()
        options._devices = [self._device]
        options._timeout = timeout

        def make() -> Any:
            with self._opened():
                backend = _c10d.ProcessGroupGloo(store, place, num, options)
                if proven:  # open until then: the rank whose place a stranger has taken is still to come
                    _check_peers(backend, store, place, num)
            return backend

        # On another thread: it waits for others to dial, and nothing is there to cut if one of them has died.
        return GlooBackend(waits.call(make), waits, place, num)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Let others connect; several groups may be made at once."""
        with self._lock:
            self._num_open += 1
            self._admit(True)
        try:
            yield
        finally:
            with self._lock:
                self._num_open -= 1
                self._admit(self._num_open > 0)

    def _admit(self, admitted: bool) -> None:
        if len(self.ports) == 1:  # otherwise another thread of the process has begun to listen meanwhile
            admit_connections(self.ports, admitted)


def _check_peers(backend: Any, store: Any, place: int, num: int) -> None:
    """Exchange proofs with all other ranks over gloo's connections.

    A proof is for one pair of ranks, one direction and one group, so that whoever gets one cannot use it.

    Raises:
        RuntimeError: the other end of a connection is not of this run.
    """
    others = [other for other in range(num) if other != place]
    if place:
        store.set(f"{_FORMED}{place}", b"1")
    else:
        store.multi_get([f"{_FORMED}{other}" for other in others])
        store.set(_PROOF, os.urandom(32))
    key = bytes(store.get(_PROOF))
    proofs = [_proof(key, place, other) for other in others]
    sending = [backend.send([proof], other, _PROOF_TAG) for proof, other in zip(proofs, others, strict=True)]
    found = [torch.zeros_like(proof) for proof in proofs]
    receiving = [backend.recv([given], other, _PROOF_TAG) for given, other in zip(found, others, strict=True)]
    for work, given, other in zip(receiving, found, others, strict=True):
        cause: Exception | None = None
        try:
            work.wait(_PROOF_LIMIT)
        except RuntimeError as error:
            cause = error
        if cause is not None or not torch.equal(given, _proof(key, other, place)):
            raise RuntimeError(
                f"in a process group of {num} ranks, the connection of ranks {place} and {other} has not been proved "
                f"to be between them: another user's process has connected to gloo's port, or rank {other} is gone. "
                "Start again; if it fails again, use hosts, and a network, that no other user is on"
            ) from cause
    for work in sending:
        work.wait(_PROOF_LIMIT)


def _proof(key: bytes, sender: int, receiver: int) -> torch.Tensor:
    digest = hmac.digest(key, f"{sender} {receiver}".encode(), "sha256")
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


class GlooBackend:
    """A backend of gloo, and the collectives under way on it.

    Args:
        backend: gloo's own.
        waits: of its epoch.
        place: this rank's place in the group.
        num: number of ranks.
    """

    def __init__(self, backend: Any, waits: Waits, place: int, num: int) -> None:
        self._backend = backend
        self._waits = waits
        self._place = place
        self._num = num
        self._under_way: set[Any] = set()

    def issue(self, name: str, *arguments: Any, after: Callable[[], None] | None = None) -> CollectiveWork:
        """Begin a collective; *after* is called when it is done."""
        match name:
            case "allgather_into_tensor_coalesced":
                return self._gather_rows(*arguments, after=after)
            case "reduce_scatter":
                outputs, inputs, options = arguments
                return self._reduce_rows(
                    outputs, [torch.cat([row.reshape(-1) for row in inputs[0]])], options, after=after
                )
            case "_reduce_scatter_base":
                output, given, options = arguments
                return self._reduce_rows([output], [_flat(given)], options, after=after)
            case "reduce_scatter_tensor_coalesced":
                outputs, inputs, options = arguments
                return self._reduce_rows(outputs, list(map(_flat, inputs)), options, after=after)
            case _:
                return self._begin(name, *arguments, after=after)

    def _begin(self, name: str, *arguments: Any, after: Callable[[], None] | None) -> CollectiveWork:
        self._waits.check()
        if len(self._under_way) > _UNWAITED:
            self._under_way.difference_update([work for work in self._under_way if work.is_completed()])
        return CollectiveWork(getattr(self._backend, name)(*arguments), self._waits, self._under_way, after)

    def _gather_rows(
        self, outputs: Any, inputs: Any, options: Any, *, after: Callable[[], None] | None
    ) -> CollectiveWork:
        if len(outputs) == 1:
            return self._begin("_allgather_base", outputs[0], inputs[0], options, after=after)
        rows = [list(output.chunk(self._num)) for output in outputs]
        lists = [list(row) for row in zip(*rows, strict=True)]
        return self._begin("allgather_coalesced", lists, inputs, options, after=after)

    # gloo adds up all rows for these, and takes one; the wait of its own work has no limit.

    def _reduce_rows(
        self,
        outputs: list[torch.Tensor],
        sums: list[torch.Tensor],
        opts: Any,
        *,
        after: Callable[[], None] | None,
    ) -> CollectiveWork:
        options = _c10d.AllreduceOptions() if len(sums) == 1 else _c10d.AllreduceCoalescedOptions()
        options.reduceOp = opts.reduceOp

        def copy() -> None:
            with torch.no_grad():
                for output, total in zip(outputs, sums, strict=True):
                    output.detach().copy_(total.chunk(self._num)[self._place].view_as(output))
            if after is not None:
                after()

        return self._begin("allreduce" if len(sums) == 1 else "allreduce_coalesced", sums, options, after=copy)

    def issue_to_peer(self, name: str, *arguments: Any, after: Callable[[], None] | None = None) -> PeerWork:
        """Begin a send or a receive; *after* is called when it is waited for."""
        self._waits.check()
        return PeerWork(getattr(self._backend, name)(*arguments), self._waits, after)

    def settle(self, until: float) -> None:
        """Wait for the collectives under way, until a time of the monotonic clock: what still waits then is stuck."""
        for work in list(self._under_way):
            left = timedelta(seconds=max(_SHORTEST_S, until - monotonic()))
            with contextlib.suppress(Exception):  # it has failed, or is one that nothing wakes
                work.wait(left)

    def retire(self) -> None:
        """Give up the backend. Its destructor waits for its collectives: on another thread, if they have not ended."""
        waiting = [work for work in self._under_way if not work.is_completed()]
        backend, self._backend = self._backend, None
        self._under_way.clear()
        if waiting:
            Thread(partial(_destroy, [backend], waiting))


def _destroy(backend: list[Any], waiting: list[Any]) -> None:
    """Destroy a backend once its collectives have ended, which they do at gloo's limit at the latest."""
    for work in waiting:
        with contextlib.suppress(Exception):  # it has failed, as it should
            work.wait()
    waiting.clear()
    backend.clear()


def _flat(given: torch.Tensor) -> torch.Tensor:
    return given.detach().reshape(-1).clone()
