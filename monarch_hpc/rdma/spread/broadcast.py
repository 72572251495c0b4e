"""`broadcast`: one memory copied to many, from host to host; `gather`: many copied into one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import check_instance, check_time_limit
from monarch_hpc.rdma.buffer import DEFAULT_TIMEOUT_S, RDMABuffer
from monarch_hpc.rdma.spread.copying import Copying
from monarch_hpc.rdma.spread.spreading import Spreading
from monarch_hpc.rdma.spread.state_broadcast import begin_state_broadcast
from monarch_hpc.rdma.state import RDMAState

__all__ = ["broadcast", "gather"]

_EXAMPLE = "a buffer, RDMABuffer(array)"


@overload
def broadcast(
    source: RDMABuffer, destinations: Iterable[RDMABuffer], *, timeout: float | None = DEFAULT_TIMEOUT_S
) -> Future[None]: ...
@overload
def broadcast(
    source: RDMAState, destinations: Iterable[RDMAState], *, timeout: float | None = DEFAULT_TIMEOUT_S
) -> Future[int]: ...
def broadcast(
    source: RDMABuffer | RDMAState,
    destinations: Iterable[RDMABuffer] | Iterable[RDMAState],
    *,
    timeout: float | None = DEFAULT_TIMEOUT_S,
) -> Future[None] | Future[int]:
    """Copy *source* to all *destinations*; any process of the run may ask for it.

    The bytes pass from host to host in chunks, so that each host gets and sends them once, and within a host from one
    process to the others. The receivers read them and serve them to the next without code of their owners.

    Of a state one version is copied, as a whole; values that are no arrays stay as they are.

    Args:
        destinations: buffers as large as *source*, and of its type or bytes; for a state, states that were made with
            ``writable=True``, of arrays with the same keys, types, shapes, strides, shards and ties. Not to be touched
            before the future is done.
        timeout: seconds; None for no limit.

    Returns:
        A future that is done when all have all bytes, and nothing writes to them any more. It fails with
        `MemoryAccessError`, before anything is written, if one of them was dropped or overlaps with another; and with
        `CopyFailed` if some are lost meanwhile, or do not have all bytes in time. Its `failures` tell which, by their
        places in *destinations*; all others have all bytes, and those that have not, arbitrary ones. For states it
        returns the version, 0 without copies, and fails with ValueError if one does not fit.

    Raises:
        TypeError, ValueError: a destination cannot take it.
    """
    if isinstance(source, RDMAState):
        return _broadcast_state(source, destinations, check_time_limit("timeout", timeout))
    check_instance("source", source, RDMABuffer, _EXAMPLE)
    targets = _listed("destinations", destinations)
    for index, target in enumerate(targets):
        _check_writable(f"destinations[{index}]", target)
        source.check_same(f"destinations[{index}]", target)
        if target.size() != source.size():
            raise ValueError(
                f"destinations[{index}] has {target.size()} bytes, the source {source.size()}: "
                "pass a slice, buffer[a:b], of the larger one"
            )
    _check_apart([("source", source), *((f"destinations[{index}]", target) for index, target in enumerate(targets))])
    if not targets:
        return _done()
    runtime = current_runtime()
    named = {index: (f"destinations[{index}]", target) for index, target in enumerate(targets)}

    def make(changed: Callable[[Copying], None], report_s: float) -> list[Copying]:
        return [Copying(runtime, ("the source", source), named, changed, report_s)]

    what = f"the broadcast of {source.size()} bytes to {len(targets)} memories"
    return _begin(Spreading(runtime, what, check_time_limit("timeout", timeout), make, len(targets)))


def _broadcast_state(source: RDMAState, destinations: Iterable[Any], timeout_s: float | None) -> Future[int]:
    states = list(destinations)
    for index, state in enumerate(states):
        check_instance(f"destinations[{index}]", state, RDMAState, "a state, RDMAState(tree, writable=True)")
    what = f"the broadcast of {source!r} to {len(states)} states"
    return begin_state_broadcast(what, source.roots, [state.roots for state in states], timeout_s)


def gather(
    sources: Iterable[RDMABuffer], destination: RDMABuffer, *, timeout: float | None = DEFAULT_TIMEOUT_S
) -> Future[None]:
    """Copy *sources* into *destination*, one behind the other; all owners send at once.

    The process of the destination reads them, each over the best path from its owner, without code of anybody.

    Args:
        sources: together as large as *destination*, and of its type or bytes.
        destination: not to be touched before the future is done.
        timeout: seconds; None for no limit.

    Returns:
        A future that is done when all bytes have arrived; it fails as that of `broadcast` does, where the `failures` of
        `CopyFailed` tell whose bytes are missing, by their places in *sources*.

    Raises:
        TypeError, ValueError: the destination cannot take them.
    """
    check_instance("destination", destination, RDMABuffer, _EXAMPLE)
    parts = _listed("sources", sources)
    _check_writable("destination", destination)
    num_bytes = sum(part.size() for part in parts)
    if num_bytes != destination.size():
        raise ValueError(
            f"the sources have {num_bytes} bytes together, the destination {destination.size()}: "
            "pass a slice, buffer[a:b], of the larger one"
        )
    for index, part in enumerate(parts):
        part.check_same("destination", destination)
        _check_apart([(f"sources[{index}]", part), ("destination", destination)])
    runtime = current_runtime()

    def make(changed: Callable[[Copying], None], report_s: float) -> list[Copying]:
        copies, start = [], 0
        for index, part in enumerate(parts):
            place = destination.part(start, part.size())
            target = {index: ("destination", place)}
            copies.append(Copying(runtime, (f"sources[{index}]", part), target, changed, report_s))
            start += part.size()
        return copies

    what = f"the gathering of {num_bytes} bytes from {len(parts)} memories"
    return _begin(Spreading(runtime, what, check_time_limit("timeout", timeout), make, len(parts)))


def _begin(spreading: Spreading) -> Future[None]:
    spreading.begin()
    return spreading


def _done() -> Future[None]:
    future: Future[None] = Future(current_runtime().engine, lambda: "nothing")
    future.set_result(None)
    return future


def _listed(what: str, buffers: Iterable[Any]) -> list[RDMABuffer]:
    listed = list(buffers)
    for index, buffer in enumerate(listed):
        check_instance(f"{what}[{index}]", buffer, RDMABuffer, _EXAMPLE)
    return listed


def _check_writable(what: str, buffer: RDMABuffer) -> None:
    if not buffer.writable:
        raise ValueError(f"{what} can only be read: it was made with writable=False")


def _check_apart(named: Sequence[tuple[str, RDMABuffer]]) -> None:
    """Refuse parts of one memory that overlap. Their owners find what overlaps by address."""
    spans = sorted((buffer.identifier, buffer.place[2], buffer.size(), name) for name, buffer in named)
    for (memory, start, num_bytes, name), (other, second, _, behind) in itertools.pairwise(spans):
        if memory == other and second < start + num_bytes:
            raise ValueError(f"{name} overlaps with {behind}: give each byte of memory once")
