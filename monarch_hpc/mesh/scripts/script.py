"""Runs scripts that were written for torchrun on a mesh.

Each rank is a fresh process that its proc starts: the script may set signal handlers, fork and leave any state behind,
and can be run again after an edit. This module does not need torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from monarch_hpc.actor.context import context, current_rank
from monarch_hpc.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.sent_failures import unpack_failure
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import check_instance, check_path, check_texts
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ScriptFailed
from monarch_hpc.core.machine.interfaces import read_interfaces
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh, proc_of
from monarch_hpc.mesh.scripts.rank import FailureReport, Order
from monarch_hpc.mesh.scripts.torchrun import TorchRank, gpu_changes
from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.transport.address import parse_address
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["RankPlace", "environment_of", "run_script"]

_GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL for the other ranks after a failure: enough for a small checkpoint. A rank without a
handler for SIGTERM ends at once, even in the middle of a collective."""

_SETTLE_S = 0.25
"""Wait between the first failure and the end of the other ranks: when a rank is killed, others may notice and report
that before its own proc does."""


def run_script(procs: ProcMesh, script: str | os.PathLike[str], args: Sequence[str] = ()) -> Future[ValueMesh[int]]:
    """Run a Python script on every proc of *procs* as torchrun would, in a fresh process beside each proc.

    The environment of the script has ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and the other variables
    of torchrun; ranks are those of the mesh, row by row. ``LOCAL_RANK`` numbers the ranks of a host, and is also the
    index of the rank's own GPU. The output of the script appears as the output of its proc.

    The text of the script is read here, and is the same for all ranks. Modules that it imports from its own folder are
    read on each host.

    Args:
        procs: the mesh to run on, one rank for each proc.
        script: path of the script on this machine.
        args: arguments that follow the script in ``sys.argv``.

    Returns:
        A future of the exit statuses by coordinate, all 0. If a rank fails, the other ranks get SIGTERM and, after
        10 s, SIGKILL; when no rank is left, the future fails with the first failure: the exception that the script
        raised, with traceback, rank and host; `ScriptFailed` if it exited with another status or was killed;
        `ActorDied` if its proc or host is gone. `cancel` ends all ranks in the same way.

    Raises:
        TypeError: an argument of another type; also if *args* is a single string.
        OSError: the script cannot be read.
        SyntaxError: the script is not valid Python.
    """
    check_instance("procs", procs, ProcMesh, "a mesh of procs, as spawn_procs returns it")
    words = check_texts("args", args, "one for each word, as in ['--lr', '3']")
    path = Path(check_path("script", script)).resolve()
    text = path.read_bytes()
    compile(text, str(path), "exec", dont_inherit=True)
    run = proc_of(current_runtime()).spawn(f"run_script {path.name}", _Script, procs, str(path), text, list(words))
    future: Future[ValueMesh[int]] = run.run.fold(lambda outcomes: _read(procs.extent, outcomes[0]))
    future.add_done_callback(lambda _future: run.stop())
    return future


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place where one rank runs.

    Attributes:
        host: name of the host.
        host_rank: rank of the host in the allocation.
        address: IP address of the host, for the other ranks.
        port: port reserved for the rendezvous on rank 0; 0 on other ranks.
        gpus: GPUs visible to the proc, its own first.
    """

    host: str
    host_rank: int
    address: str
    port: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Report:
    """The end of the script on one rank.

    Attributes:
        where: script, rank and host, in words.
        status: exit status as in `subprocess`: -9 for signal 9.
        message: message passed to `sys.exit`; empty for none.
        failure: the exception as packed by `pack_failure`; empty for none.
        ended: whether the rank was ended because another rank had failed.
    """

    where: str
    status: int
    message: str = ""
    failure: bytes = b""
    ended: bool = False

    def error(self) -> BaseException:
        """The exception to raise to the caller of `run_script`."""
        if self.failure:
            return unpack_failure(Frame(Kind.FAILURE, 0, 0, self.failure))
        code, number = (self.status, None) if self.status >= 0 else (None, -self.status)
        return ScriptFailed(self.where, self.status, f"{Exit(code, number)}{self.message and ': '}{self.message}")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The end of the script on all ranks.

    Attributes:
        failures: the ranks that failed, the cause first; empty on success.
        num_ended: number of other ranks that were ended because of the failure.
    """

    failures: list[_Report | BaseException]
    num_ended: int


def _read(extent: Extent, outcome: _Outcome) -> ValueMesh[int]:
    if not outcome.failures:
        return ValueMesh(Region.whole(extent), [0] * len(extent))
    first, *others = [given if isinstance(given, BaseException) else given.error() for given in outcome.failures]
    if others:
        second = summary_of(others[0])
        BaseException.add_note(first, f"other ranks that failed after it: {len(others)}, the first with {second}")
    if outcome.num_ended:
        BaseException.add_note(first, f"ranks that still ran and were ended: {outcome.num_ended}")
    raise first


def environment_of(rank: int, places: Sequence[RankPlace], run: str) -> dict[str, str]:
    """Return the variables that torchrun would add to the environment of *rank*.

    Args:
        rank: the rank.
        places: places of all ranks.
        run: id of the run, for ``TORCHELASTIC_RUN_ID``.
    """
    own = places[rank]
    hosts = list(dict.fromkeys(place.host_rank for place in places))
    local = [number for number, place in enumerate(places) if place.host_rank == own.host_rank]
    torch_rank = TorchRank(
        rank=rank,
        world_size=len(places),
        local_rank=local.index(rank),
        local_world_size=len(local),
        group_rank=hosts.index(own.host_rank),
        group_world_size=len(hosts),
        role_name="default",
        master_addr=places[0].address,
        master_port=places[0].port,
    )
    return {
        **torch_rank.variables(),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def gpus_of(rank: int, places: Sequence[RankPlace]) -> list[str]:
    """Return the GPUs to make visible to *rank*, ordered so that its local rank is the index of its own GPU.

    In procs the order differs: each proc sees its own GPU as device 0.
    """
    local = [place.gpus for place in places if place.host_rank == places[rank].host_rank]
    own = [gpus[0] for gpus in local if gpus]
    return list(dict.fromkeys([*own, *(gpu for gpus in local for gpu in gpus)]))


class _Script(Actor):
    """One script on all ranks: starts the ranks, and ends them when one has failed. Runs in the caller's process."""

    def __init__(self, procs: ProcMesh, path: str, text: bytes, args: list[str]) -> None:
        self._procs = procs
        self._order = path, text, args

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Handle every failure: the call that waits for the rank reports it."""
        return True

    @concurrent_endpoint
    async def run(self) -> _Outcome:
        """Run the script until all ranks have ended."""
        ranks = self._procs.spawn("script", _Rank)
        places = list((await ranks.prepare.call()).values())
        failures: list[_Report | BaseException] = []
        num_ended = 0
        ending: asyncio.Task[None] | None = None
        calls = ranks.run.options(on_error="collect").stream(*self._order, places)
        async for _point, given in calls.items():
            if isinstance(given, _Report) and given.ended:
                num_ended += 1
            elif isinstance(given, BaseException) or given.status:
                failures.append(given)
                ending = ending or asyncio.create_task(self._end(ranks, failures))
        if ending is not None:
            await ending
        return _Outcome(failures, num_ended)

    async def _end(self, ranks: ActorMesh[_Rank], failures: list[_Report | BaseException]) -> None:
        await asyncio.sleep(_SETTLE_S)
        # Deaths first: a death causes exceptions on other ranks, but not the reverse.
        failures.sort(key=lambda given: not isinstance(given, BaseException) and given.status >= 0)
        await ranks.end.options(on_error="collect").call()


class _Rank(Actor):
    """Runs one rank of a script in a separate process, and reports its end."""

    def __init__(self) -> None:
        self._pid = 0
        self._over = asyncio.Event()
        self._failing = False
        self._ended = False
        self._reserved: socket.socket | None = None

    @endpoint
    async def prepare(self) -> RankPlace:
        """Return the place of this rank; rank 0 reserves a port."""
        info = context().proc
        own = current_runtime().own
        address, _ = parse_address(own.addresses[0])
        port = 0
        if not current_rank().rank:
            # Bound until the script has ended, and never listening: the kernel then hands out the port only to a
            # process that asks for its number with SO_REUSEADDR, as torch's store does.
            self._reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._reserved.bind((address, 0))
            port = self._reserved.getsockname()[1]
        return RankPlace(info.host, info.host_rank, address, port, info.gpus)

    @concurrent_endpoint
    async def run(self, path: str, text: bytes, args: list[str], places: list[RankPlace]) -> _Report:
        """Run the script; returns when its process has ended, or has reported a failure and is about to exit."""
        rank = current_rank().rank
        where = f"{Path(path).name}, rank {rank} on {places[rank].host}"
        order: Order = where, text, sys.path, os.getpid()
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as open_files:
            order_fd = os.memfd_create("script", os.MFD_CLOEXEC)
            open_files.callback(os.close, order_fd)
            failed_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            open_files.callback(os.close, failed_fd)
            with open(order_fd, "wb", closefd=False) as written:
                pickle.dump(order, written)
            process = launch(
                # -P: files in the working directory must not replace our modules. -u: as torchrun.
                [
                    sys.executable,
                    "-P",
                    "-u",
                    "-m",
                    "monarch_hpc.mesh.scripts.rank",
                    str(order_fd),
                    str(failed_fd),
                    path,
                    *args,
                ],
                _complete(os.environ, rank, places),
                stdin=subprocess.DEVNULL,
                pass_fds=(order_fd, failed_fd),
                new_session=True,
            )
            self._pid = process.pid
            ended_or_failed = asyncio.Event()
            pid_fd = os.pidfd_open(process.pid)

            def ended() -> None:
                loop.remove_reader(pid_fd)
                os.close(pid_fd)
                with contextlib.suppress(ProcessLookupError):  # children that the script left behind
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()  # returns at once: the process has ended
                self._over.set()
                ended_or_failed.set()

            loop.add_reader(pid_fd, ended)
            loop.add_reader(failed_fd, ended_or_failed.set)
            open_files.callback(loop.remove_reader, failed_fd)
            await ended_or_failed.wait()
            report: FailureReport | None = None
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(failed_fd)
                with open(order_fd, "rb", closefd=False) as overwritten:
                    overwritten.seek(0)
                    report = pickle.load(overwritten)
        if report is not None:
            self._failing = True
            return _Report(where, *report, ended=self._ended)
        return _Report(where, process.returncode, ended=self._ended)

    @concurrent_endpoint
    async def end(self) -> None:
        """End the script's process, if it runs; returns when it is gone."""
        if not self._pid or self._over.is_set():
            return
        self._ended = True
        if self._failing and await self._gone():  # it has failed, and was about to exit
            return
        self._signal(signal.SIGTERM)
        if not await self._gone():
            self._signal(signal.SIGKILL)
            await self._over.wait()

    async def _gone(self) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), _GRACE_S)
        return self._over.is_set()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    async def __cleanup__(self, error: BaseException | None) -> None:
        """End the script's process; if the proc itself dies, the kernel kills it."""
        await self.end()
        if self._reserved is not None:
            self._reserved.close()


def _complete(inherited: Mapping[str, str], rank: int, places: Sequence[RankPlace]) -> dict[str, str]:
    """The complete environment of the script's process."""
    own = places[rank]
    environment = {**inherited, **environment_of(rank, places, context().proc.run)}
    environment |= gpu_changes(environment, own.gpus, gpus_of(rank, places))
    # By default gloo and nccl derive an interface from the host's name, which on clusters is often the wrong one.
    for name, address in read_interfaces().items():
        if address == own.address:
            environment.setdefault("GLOO_SOCKET_IFNAME", name)
            environment.setdefault("NCCL_SOCKET_IFNAME", name)
    if environment["LOCAL_WORLD_SIZE"] != "1":
        environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: ranks share the cores
    return environment
