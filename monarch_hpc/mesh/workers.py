"""Hosts that were started by hand: workers that wait, and programs that attach to them."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import pending
from monarch_hpc.attach.workers.attach import AttachedWorkers, open_workers
from monarch_hpc.attach.workers.key import Secret
from monarch_hpc.attach.workers.worker import Worker
from monarch_hpc.config.load import load
from monarch_hpc.core.arguments import check_instance, check_seconds, check_text, shown
from monarch_hpc.core.dumps import forbid_core_dumps
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.mesh.host import HostMesh, hosts
from monarch_hpc.mesh.program.controller import Controller

__all__ = [
    "attach_to_workers",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "start_worker_loop_forever",
]

Ca = bytes | str | Path | Literal["trust_all_connections"] | None


def run_worker_loop_forever(*, private_key: Secret = None, ca: Ca = None, address: str) -> None:
    """Be a worker: wait for programs, and be a host of theirs, one after the other.

    When a program ends, or is lost, all that it started here ends, and the worker waits for the next one. It ends
    with its process, or when a program shuts its hosts down.

    Nobody who lacks the key can make it do anything, and there are no certificates: with *ca*
    ``"trust_all_connections"`` as without it.

    Args:
        private_key: what both sides prove to have: 16 bytes or more, or a file of mode 0600 that holds it. None takes
            ``worker.key`` in the state directory (config key `paths.state`), which is made at the first use: right
            where all hosts see one home directory.
        ca: None or ``"trust_all_connections"``; anything else must be the same as *private_key*.
        address: ``tcp://host:port``; ``ipc://path``, a file in which a worker on this machine says where it listens;
            ``tcp://host:port@tcp://0.0.0.0:port`` to be dialled at the first and to listen at the second.

    Raises:
        ConfigError: the address or the key cannot be used; it says why.
        PeerLost: the address is taken.
    """
    check_text("address", address)
    _check(private_key, ca)
    forbid_core_dumps()
    with _ending_on_sigterm():
        Worker(address, private_key, load().config).serve(announce=_announce)


def run_worker_loop_until_shutdown(*, private_key: Secret = None, ca: Ca = None, address: str) -> None:
    """The same as `run_worker_loop_forever`, which returns, too, when a program shuts its hosts down."""
    run_worker_loop_forever(private_key=private_key, ca=ca, address=address)


def start_worker_loop_forever(*, private_key: Secret = None, ca: Ca = None, address: str) -> Future[None]:
    """`run_worker_loop_forever` on a thread of its own, once it listens; the future is done when the loop ends."""
    check_text("address", address)
    _check(private_key, ca)
    worker = Worker(address, private_key, load().config)
    future: Future[None] = pending(f"the end of the worker at {address}")

    def serve() -> None:
        try:
            worker.serve(announce=_announce)
        except BaseException as error:  # noqa: BLE001 raised where the future is read
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=serve, name="monarch-worker", daemon=True).start()
    return future


def attach_to_workers(
    *,
    private_key: Secret = None,
    ca: Ca = None,
    workers: Sequence[str | Future[str]],
    name: str | None = None,
    timeout: float | None = None,
) -> HostMesh:
    """Take waiting workers as the hosts of this program, until it ends; returns when all of them are ready.

    Args:
        private_key, ca: as of `run_worker_loop_forever`, and the same.
        workers: their addresses, one for each host, in the order of the mesh; or futures of them.
        name: for moved programs; hosts have names of their own.
        timeout: seconds to wait for all of them; None for config key `agent.attach_s`.

    Returns:
        A mesh with the dimension ``hosts``.

    Raises:
        TypeError: an argument of another type; *workers* as one string, too.
        RuntimeError: this program has its hosts already: it was attached before, or has used `hosts()` or such.
        ConfigError: an address or the key cannot be used.
        AllocationError: a worker did not come in time; it is named, with what to do.
        AuthenticationError: when the time is over, who listens in a worker's place still holds another key.
    """
    _check(private_key, ca)
    if isinstance(workers, (str, bytes, Mapping)) or not isinstance(workers, Iterable):
        raise TypeError(f"workers is {shown(workers)}: give a list of their addresses, ['tcp://gpu01:7000']")
    given = [worker.get() if isinstance(worker, Future) else worker for worker in workers]
    addresses = [check_text(f"workers[{index}]", worker) for index, worker in enumerate(given)]
    if timeout is not None:
        timeout = check_seconds("timeout", timeout)
    config = load().config

    hired: list[AttachedWorkers] = []

    def open_them(resources: contextlib.ExitStack) -> Path:
        hired.append(resources.enter_context(open_workers(addresses, private_key, config, timeout)))
        return hired[0].directory

    Controller.instance(open_them).dismissals.append(hired[0].dismiss)
    return hosts()


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end what runs in the context in good order, where nobody else has a use for it."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _check(private_key: Secret, ca: Any) -> None:
    if private_key is not None:
        check_instance("private_key", private_key, (bytes, str, Path), "the key as bytes, or a path of its file")
    if ca not in (None, "trust_all_connections", private_key):
        problem = "there are no certificates here: both sides prove one key, private_key; leave 'ca' out"
        raise ConfigError("", "", "ca", problem)


def _announce(text: str) -> None:
    print(f"monarch-hpc: {text}", file=sys.stderr, flush=True)
