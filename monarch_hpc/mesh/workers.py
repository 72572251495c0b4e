"""Hosts that were started by hand: the worker's loop, and the attachment of a program to workers."""

from __future__ import annotations

import contextlib
import signal
import sys
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
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.process.dumps import forbid_core_dumps
from monarch_hpc.core.process.thread import Thread, in_main_thread
from monarch_hpc.mesh.host import HostMesh, all_hosts
from monarch_hpc.mesh.program.controller import Controller

__all__ = [
    "attach_to_workers",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "start_worker_loop_forever",
]

Ca = bytes | str | Path | Literal["trust_all_connections"] | None


def run_worker_loop_forever(*, private_key: Secret = None, ca: Ca = None, address: str) -> None:
    """Run a worker: wait for programs, and serve one after the other as a host.

    When a program ends or is lost, everything that it started here ends, and the worker waits for the next program. The
    loop returns when a program shuts its hosts down.

    A program must prove that it has the key; there are no certificates, whatever *ca* is.

    Args:
        private_key: the secret that both sides must prove to have: 16 bytes or more, or the path of a file of mode 0600
            that holds it. None takes ``worker.key`` in the state directory (config key `paths.state`), created on first
            use, which suits hosts that share a home directory.
        ca: None or ``"trust_all_connections"``, without effect; anything else must equal *private_key*.
        address: ``tcp://host:port``; ``ipc://path``, a file in which a worker on this machine publishes its address;
            or ``tcp://host:port@tcp://0.0.0.0:port`` to be dialled at the first and to listen at the second.

    Raises:
        ConfigError: the address or the key cannot be used.
        PeerLost: the address is in use.
        TypeError: an argument of another type.
    """
    check_text("address", address)
    _check(private_key, ca)
    forbid_core_dumps()
    with _ending_on_sigterm():
        Worker(address, private_key, load().config).serve(announce=_announce)


def run_worker_loop_until_shutdown(*, private_key: Secret = None, ca: Ca = None, address: str) -> None:
    """The same as `run_worker_loop_forever`, which also returns when a program shuts its hosts down."""
    run_worker_loop_forever(private_key=private_key, ca=ca, address=address)


def start_worker_loop_forever(*, private_key: Secret = None, ca: Ca = None, address: str) -> Future[None]:
    """Run `run_worker_loop_forever` on a daemon thread; the worker listens when this returns.

    Returns:
        A future that is done when the loop ends, and fails with the exception that ended it.
    """
    check_text("address", address)
    _check(private_key, ca)
    worker = Worker(address, private_key, load().config)
    future: Future[None] = pending(f"the end of the worker at {address}")

    def serve() -> None:
        try:
            worker.serve(announce=_announce)
        except BaseException as error:  # noqa: BLE001 raised to the reader of the future
            future.set_exception(error)
        else:
            future.set_result(None)

    Thread(serve)
    return future


def attach_to_workers(
    *,
    private_key: Secret = None,
    ca: Ca = None,
    workers: Sequence[str | Future[str]],
    name: str | None = None,
    timeout: float | None = None,
) -> HostMesh:
    """Use waiting workers as hosts of this program until it ends, beside others; returns when all of them are ready.

    Args:
        private_key: the workers' key, see `run_worker_loop_forever`.
        ca: see `run_worker_loop_forever`.
        workers: addresses of the workers, one for each host, in the order of the mesh; or futures of addresses.
        name: for moved programs; not used, since hosts have their own names.
        timeout: seconds to wait for all workers; None for config key `agent.attach_s`.

    Returns:
        A mesh with the dimension ``hosts``.

    Raises:
        TypeError: an argument of another type; also if *workers* is a single string.
        RuntimeError: this is a proc.
        ConfigError: an address or the key cannot be used.
        AllocationError: a worker was not ready in time; the error names it and says what to do.
        AuthenticationError: the process that listens at a worker's address still had another key at the timeout.
    """
    _check(private_key, ca)
    if isinstance(workers, (str, bytes, Mapping)) or not isinstance(workers, Iterable):
        raise TypeError(f"workers is {shown(workers)}: give a list of their addresses, ['tcp://gpu01:7000']")
    given = [worker.get() if isinstance(worker, Future) else worker for worker in workers]
    addresses = [check_text(f"workers[{index}]", worker) for index, worker in enumerate(given)]
    if timeout is not None:
        timeout = check_seconds("timeout", timeout)
    config = load().config

    attached: list[AttachedWorkers] = []

    def open_attached(resources: contextlib.ExitStack) -> Path:
        attached.append(resources.enter_context(open_workers(addresses, private_key, config, timeout)))
        return attached[0].directory

    controller = Controller.instance()
    tenancy = controller.tenancies.open(open_attached)
    tenancy.dismiss = attached[0].dismiss
    return all_hosts(controller.door, tenancy.allocation)


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit` within the context, unless the program handles SIGTERM itself."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if not in_main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
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
