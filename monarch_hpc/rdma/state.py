"""Trees of arrays, such as the state_dict of a model, as one reference: read whole, or by keys, or by shards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import (
    check_flag,
    check_instance,
    check_number,
    check_seconds,
    check_texts,
    check_time_limit,
)
from monarch_hpc.rdma.buffer import DEFAULT_TIMEOUT_S, RDMABuffer
from monarch_hpc.rdma.trees.reader import Reader
from monarch_hpc.rdma.trees.reading import Reading
from monarch_hpc.rdma.trees.source import Source, dtype_name

__all__ = ["RDMAState"]

T = TypeVar("T")

_PATIENCE_S = 10.0
"""Time that `publish` waits for readers by default: some gigabytes on a slow network. One that died costs it once."""


class RDMAState:
    """A reference to a tree of arrays of the process that made it; may be sent in messages.

    A tree is an array or tensor, or dicts, lists, tuples and dataclasses of them, nested as deeply as wanted. Its
    arrays are known by keys such as ``layers.0.weight``. Those that share memory travel once, and share it at the
    reader, too; strides are kept. Other values travel with the layout.

    With *copies* there are versions: `publish` copies the tree, and readers get one version as a whole. With two copies
    they finish the last one while the next is written. Without, readers see the tree's own memory as it is while they
    read.

    Args:
        tree: with at least one array. Its memory is held as that of an `RDMABuffer`.
        copies: how many versions others can read, each as large as the tree; the first is published at once.
        dtype: the type that floating-point elements of the copies are converted to, once for each version.
        writable: whether it may be a destination of `broadcast`; only without copies.

    Raises:
        TypeError: the tree has a tensor whose memory cannot be read as it is, or elements that cannot be converted.
        ValueError: it has no arrays, or two with the same key.
    """

    def __init__(self, tree: object, *, copies: int = 0, dtype: object = None, writable: bool = False) -> None:
        num_copies = check_number("copies", copies, least=0)
        if dtype is not None and not num_copies:
            raise ValueError("dtype converts copies, and there are none: give copies=2, or copies=1, too")
        if check_flag("writable", writable) and num_copies:
            raise ValueError("copies are written by publish alone: give writable=True without copies")
        name = "" if dtype is None else dtype_name(dtype)
        self._source: Source | None = Source(tree, num_copies, name, writable=writable)
        self._roots: tuple[RDMABuffer, ...] = (self._source.root,)
        self._num_bytes = self._source.layout.num_bytes

    def __repr__(self) -> str:
        return f"<RDMAState of {self._num_bytes} bytes of {', '.join(self.owners)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._roots, self._num_bytes)

    @classmethod
    def join(cls, states: Iterable[RDMAState]) -> RDMAState:
        """One state of several: what each has of the keys, and of the elements of sharded arrays.

        Readers take what several have from any of them, and the same version from all.

        Raises:
            TypeError: *states* are none.
            ValueError: there are none.
        """
        parts = tuple(states)
        if not parts:
            raise ValueError("states is empty: give at least one")
        for index, part in enumerate(parts):
            check_instance(f"states[{index}]", part, cls, "a state, RDMAState(tree)")
        return _rebuild(tuple(root for part in parts for root in part._roots), sum(part._num_bytes for part in parts))

    @property
    def owners(self) -> tuple[str, ...]:
        """Identities of the actors that made it."""
        return tuple(root.owner for root in self._roots)

    @property
    def roots(self) -> tuple[RDMABuffer, ...]:
        """The memory that it refers to, of each owner; for `broadcast`."""
        return self._roots

    def size(self) -> int:
        """Number of bytes of the arrays, those that share memory counted once; of one copy."""
        return self._num_bytes

    def publish(self, tree: object = None, *, timeout: float = _PATIENCE_S) -> int:
        """Make what is in the tree the next version; only where the state was made.

        Args:
            tree: another tree of the same layout, which takes the place of the one given before.
            timeout: seconds to wait for readers of the copy that is overwritten, where they have begun anew because of
                an earlier `publish`; after that they begin again. The other copies stay readable meanwhile.

        Returns:
            The number of the version: 1 for the one that `RDMAState` has published, then 2, 3, ...

        Raises:
            ValueError: the state has no copies, was made elsewhere, or the tree has changed in more than the contents
                of its arrays and other values.
            MemoryAccessError: the state was dropped.
        """
        if self._source is None:
            raise ValueError(f"{self!r} can only be published where it was made")
        return self._source.publish(tree, check_seconds("timeout", timeout, zero=True))

    def version(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Future[int]:
        """Ask for the last version that was published; 0 if the state has no copies."""
        return self._begin("version", timeout, Reader.newest)

    def read_into(
        self, tree: object, *, keys: Iterable[str] | None = None, timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> Future[int]:
        """Read into the arrays of *tree*, on any device; other values are set where they are not in tuples.

        Args:
            tree: with the keys, shapes and types of the state; strides and shards may differ. With *keys*, it may have
                others, too.
            keys: of arrays, or of what contains them; None for all.
            timeout: seconds; None for no limit.

        Returns:
            A future with the version that was read, as a whole; 0 if the state has no copies. It fails with ValueError
            or TypeError, before anything is written, if the tree does not fit, and names the key; otherwise as that of
            `RDMABuffer.read_into`, and what is in the arrays then is arbitrary.
        """
        asked = _asked(keys)
        return self._begin("read", timeout, lambda reader: reader.read_into(tree, asked))

    def read(self, *, keys: Iterable[str] | None = None, timeout: float | None = DEFAULT_TIMEOUT_S) -> Future[Any]:
        """Read into new arrays and tensors in host memory; see `read_into`.

        Returns:
            A future with the tree, or with a dict by key if *keys* are given.
        """
        asked = _asked(keys)
        return self._begin("read", timeout, lambda reader: reader.read(asked))

    def drop(self) -> Future[None]:
        """Revoke the memory for everyone; anyone who has the state may do so; see `RDMABuffer.drop`."""

        def work(steps: Reading[None]) -> None:
            reader = Reader(steps, self._roots)
            for memory in [*self._roots, *(memory for layout in reader.layouts for memory in layout.memories)]:
                steps.wait(functools.partial(_drop, memory))

        return Reading(current_runtime().engine, f"the end of {self!r}", None, work)

    def _begin(self, what: str, timeout: float | None, use: Callable[[Reader], T]) -> Future[T]:
        limit_s = check_time_limit("timeout", timeout)
        roots = self._roots
        engine = current_runtime().engine
        return Reading(engine, f"{what} of {self!r}", limit_s, lambda steps: use(Reader(steps, roots)))


def _drop(memory: RDMABuffer, _left_s: float | None) -> Future[None]:
    return memory.drop()


def _asked(keys: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if keys is None else check_texts("keys", keys, "such as ['layers.0']")


def _rebuild(roots: tuple[RDMABuffer, ...], num_bytes: int) -> RDMAState:
    state = object.__new__(RDMAState)
    state._source = None
    state._roots = roots
    state._num_bytes = num_bytes
    return state
