"""Collectives on the memory of devices: those of a library such as NCCL, which run in the order of a device's stream.

A wait for one of them lets the stream wait, not the thread. Where a rank reads what depends on other ranks, or commits,
it first drains them: an abort, an error and a limit end that wait as they end one in gloo.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from threading import Lock
from time import monotonic, sleep
from typing import Any, Protocol

import torch
import torch.distributed as dist

from monarch_hpc.core.process.thread import Thread
from monarch_hpc.core.text.description import text_of
from monarch_hpc.tensor.worker.collectives.nccl import Nccl
from monarch_hpc.tensor.worker.collectives.staging import device_of
from monarch_hpc.tensor.worker.collectives.waits import Waits

__all__ = ["LIBRARIES", "DeviceBackend", "DeviceBackends", "DeviceLibrary"]

_Work: Any = dist.Work
_NO_LIMIT = timedelta(0)
_LEAST_PAUSE_S, _MOST_PAUSE_S = 20e-6, 1e-3
"""Pauses between two looks at collectives of a device: a step waits some milliseconds for its last one."""

_SETTLE_STEP_S = 0.002


class DeviceLibrary(Protocol):
    """A library of collectives on one type of device.

    Attributes:
        name: its name in errors.
        collectives: names of the methods of a process group that it has.
        reductions: those that it has.
        dtypes: the types of elements that it knows.
    """

    name: str
    collectives: frozenset[str]
    reductions: frozenset[Any]
    dtypes: frozenset[torch.dtype]

    def identity(self) -> str:
        """What tells this rank's device from all others; empty if this rank has none for the library."""
        ...

    def connect(self, store: Any, place: int, num: int, timeout: timedelta, device: torch.device) -> Any:
        """torch's process group, connected; on any thread. Returns when all ranks of the group have called it."""
        ...

    def failure(self, group: Any) -> str:
        """What it has noticed by itself in a process group, and may have aborted; empty if nothing.

        Works that it has aborted have ended, and may have no error.
        """
        ...


LIBRARIES: dict[str, DeviceLibrary] = {"cuda": Nccl()}
"""Libraries by type of device; tensors of other devices go by way of host memory."""


class DeviceBackends:
    """The process groups on devices of one rank, and the way to make one."""

    def __init__(self) -> None:
        self._found: list[DeviceBackend] = []
        self._lock = Lock()

    def meet(
        self, kind: str, library: DeviceLibrary | None, store: Any, place: int, num: int, waits: Waits, timeout_s: float
    ) -> DeviceBackend | None:
        """Meet the other ranks of a group for collectives on devices; of a thread whose present device is to be used.

        Args:
            kind: type of the devices.
            library: for them; None if there is none.
            store: a rendezvous of this group and type of device.
            place: this rank's place in the group.
            num: number of ranks.
            waits: of the epoch.
            timeout_s: longest wait for a collective.

        Returns:
            The backend; None on all ranks if one has no device, or two have the same, which libraries refuse: then
            tensors go by way of host memory.

        Raises:
            RuntimeError: of an abort, also of one that came before the backend was there to be aborted.
        """
        store.set(f"device/{place}", "" if library is None else library.identity())
        devices = store.multi_get([f"device/{one}" for one in range(num)])
        if library is None or not all(devices) or len(set(devices)) < num:
            return None
        # Each thread has a present device of its own, and that of the one that connects is the first.
        connect = partial(library.connect, store, place, num, timedelta(seconds=timeout_s), device_of(kind))
        made = DeviceBackend(waits.call(connect), store, library, waits, timeout_s)
        with self._lock:
            self._found.append(made)
        if waits.cause:
            made.abort()
            raise RuntimeError(waits.cause)
        return made

    def abort(self) -> None:
        """End what is under way on devices, once the waits have ended; from any thread, without waiting for it."""
        for one in self._all():
            one.abort()

    def drain(self) -> None:
        """See `DeviceBackend.drain`."""
        for one in self._all():
            one.drain()

    def settle(self, until: float) -> None:
        """See `DeviceBackend.settle`."""
        for one in self._all():
            one.settle(until)

    def retire(self) -> None:
        """Give up the groups."""
        with self._lock:
            found, self._found = self._found, []
        for one in found:
            one.retire()

    def _all(self) -> list[DeviceBackend]:
        with self._lock:
            return list(self._found)


class DeviceBackend:
    """A process group on devices, and the collectives under way on it.

    Args:
        group: torch's.
        store: its rendezvous, which must live as long.
        library: what it was made by.
        waits: of its epoch.
        timeout_s: longest time for a collective.
    """

    def __init__(self, group: Any, store: Any, library: DeviceLibrary, waits: Waits, timeout_s: float) -> None:
        self._group = group
        self._store = store
        self._library = library
        self._waits = waits
        self._timeout_s = timeout_s
        self._under_way: dict[Any, None] = {}
        self._ending: Thread | None = None

    def has(self, name: str, dtypes: set[torch.dtype], reduction: Any) -> bool:
        """Whether it can do a collective; alike on all ranks.

        Args:
            name: of the method.
            dtypes: types of the elements.
            reduction: torch's; None if it reduces nothing.
        """
        library = self._library
        return (
            name in library.collectives
            and dtypes <= library.dtypes
            and (reduction is None or any(reduction == one for one in library.reductions))
        )

    def issue(self, name: str, *arguments: Any) -> DeviceWork:
        """Begin a collective."""
        self.check()
        arguments[-1].asyncOp = True  # else, as torch's synchronous functions want it, NCCL returns no work
        work = getattr(self._group, name)(*arguments)
        self._under_way[work] = None
        return DeviceWork(work, self.check)

    def check(self) -> None:
        """Raise what has failed, or the cause of an abort."""
        self._waits.check()
        failure = ""
        for work in list(self._under_way):
            if not work.is_completed():
                break  # those behind it are on the same stream, and an error is the whole group's
            self._under_way.pop(work, None)
            error = work.exception()  # NCCL's works do not say whether they are a success
            failure = failure or ("" if error is None else text_of(error))
        group = self._group
        failure = failure or ("" if group is None else self._library.failure(group))
        if failure:
            self._waits.check()  # it has failed because of the abort
            raise RuntimeError(f"{self._library.name}: {failure}")

    def drain(self) -> None:
        """Wait until all collectives have ended.

        Raises:
            RuntimeError: one has failed, or has not ended in time; or the cause of an abort.
        """
        until = monotonic() + self._timeout_s
        pause_s = _LEAST_PAUSE_S
        while True:
            self.check()
            if not self._under_way:
                return
            if monotonic() > until:
                name = self._library.name
                raise RuntimeError(f"{name}: a collective has not ended within {self._timeout_s:g} s on its device")
            sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def abort(self) -> None:
        """End what is under way on the device; from any thread, without waiting for it."""
        group = self._group
        if group is not None and self._ending is None:
            self._ending = Thread(partial(_abort, group))

    def settle(self, until: float) -> None:
        """Wait for what was aborted to end, until a time of the monotonic clock."""
        if self._ending is not None:
            self._ending.join(max(0.0, until - monotonic()))
            if self._ending.alive:  # NCCL's works would wait for it, too, and torch with the interpreter's lock
                return
        while not all(map(_has_ended, list(self._under_way))) and monotonic() < until:
            sleep(_SETTLE_STEP_S)

    def retire(self) -> None:
        """Give up the group. Its end may wait for other ranks: on another thread."""
        group, self._group = self._group, None
        self._under_way.clear()
        if group is not None:
            Thread(partial(_abort, group))


def _abort(group: Any) -> None:
    with contextlib.suppress(Exception):  # it was aborted before, or its device is lost
        group.abort()


def _has_ended(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except Exception:  # noqa: BLE001 of a device that is lost, on which nothing runs any more; the next operator says so
        return True


class DeviceWork(_Work):  # type: ignore[misc]  # torch does not declare it
    """A collective in the order of a device's stream.

    Args:
        work: torch's, whose `wait` has the present stream wait.
        check: raises what has failed, or the cause of an abort.
    """

    def __init__(self, work: Any, check: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._check = check

    def wait(self, _timeout: timedelta = _NO_LIMIT) -> bool:
        """Have what comes after in the present stream come after it: a limit is that of `DeviceBackend.drain`."""
        self._check()
        self._work.wait()
        return True

    def get_future(self) -> Any:
        """A future of its result, in the order of streams."""
        return self._work.get_future()

    def is_completed(self) -> bool:
        """Tell whether it has ended."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Tell whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Any:
        """What failed."""
        return self._work.exception()

    def result(self) -> Any:
        """The tensors of its result."""
        return self._work.result()
