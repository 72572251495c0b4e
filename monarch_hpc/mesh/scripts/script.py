"""Scripts that were written for torchrun, on a mesh.

Each rank is a fresh process that its proc starts: the script may set signal handlers, fork and leave what it likes
behind, and can be run again after an edit. Of torch nothing is needed here.
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
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.actor.context import context, current_rank
from monarch_hpc.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.payload import unpack_failure
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import check_instance, check_path, check_texts
from monarch_hpc.core.description import summary_of
from monarch_hpc.core.errors import ScriptFailed
from monarch_hpc.core.exit import Exit
from monarch_hpc.core.interfaces import read_interfaces
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.core.spawn import launch
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.program.registry import proc_of
from monarch_hpc.mesh.scripts.rank import Order, Word
from monarch_hpc.mesh.scripts.torchrun import TorchRank, retold_gpus
from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.transport.address import parse_address
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["RankPlace", "environment_of", "run_script"]

_GRACE_S = 10.0
"""What ranks get between SIGTERM and SIGKILL when another has failed: time for a small checkpoint. Those without a
handler for it end at once, also in the middle of a collective."""

_SETTLE_S = 0.25
"""After the first failure, how long to wait for others before ranks are ended: when a rank is killed, others may
notice, and report it, before its own proc does."""


def run_script(procs: ProcMesh, script: str | os.PathLike[str], args: Sequence[str] = ()) -> Future[ValueMesh[int]]:
    """Run a Python script on every proc of *procs* as torchrun would, each time in a fresh process beside the proc.

    The script finds ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and the other variables of torchrun;
    ranks are the mesh's, row by row. ``LOCAL_RANK`` numbers the ranks of a host, and is also the index of the rank's
    own GPU. What the script prints arrives as the output of its proc.

    The text of the script is read here, and is the same for all ranks. What it imports from its own folder each
    host reads itself.

    Args:
        script: its file, as seen from here.
        args: what follows the script in ``sys.argv``.

    Returns:
        A future of the exit statuses, all 0. Otherwise it fails, once no rank is left: with what the script raised,
        with its traceback, rank and host; with `ScriptFailed` where it exited with another status, or was killed;
        with `ActorDied` where its proc or host is gone. The first failure counts, and ends the other ranks: SIGTERM,
        and SIGKILL after 10 s. So does `cancel`.

    Raises:
        TypeError: an argument of another type; *args* as one string, too.
        OSError: the script cannot be read.
        SyntaxError: it is no Python.
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
    """Where one rank runs.

    Attributes:
        address: IP address of its host, for the other ranks.
        port: reserved for the rendezvous; rank 0 alone has one.
        gpus: what its proc sees, its own first.
    """

    host: str
    host_rank: int
    address: str
    port: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Report:
    """How the script of one rank ended.

    Attributes:
        status: as `subprocess` tells it: -9 for signal 9.
        said: what `sys.exit` was given to say.
        failure: the exception, as `pack_failure` gives it; empty for none.
        ended: we ended it, because another had failed.
    """

    where: str
    status: int
    said: str = ""
    failure: bytes = b""
    ended: bool = False

    def error(self) -> BaseException:
        """What the caller is to catch."""
        if self.failure:
            return unpack_failure(Frame(Kind.FAILURE, 0, 0, self.failure))
        code, number = (self.status, None) if self.status >= 0 else (None, -self.status)
        return ScriptFailed(self.where, self.status, f"{Exit(code, number)}{self.said and ': '}{self.said}")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How the script ended on all ranks: well, if there are no failures; else the first of them is the cause.

    Attributes:
        num_ended: ranks that were ended because of it.
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
    """Return what torchrun would add to the environment of *rank*.

    Args:
        places: of all ranks.
        run: names the run, for ranks that look for each other.
    """
    own = places[rank]
    hosts = list(dict.fromkeys(place.host_rank for place in places))
    local = [number for number, place in enumerate(places) if place.host_rank == own.host_rank]
    seat = TorchRank(
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
        **seat.variables(),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def gpus_of(rank: int, places: Sequence[RankPlace]) -> list[str]:
    """Return the GPUs that *rank* is to see, so that its local rank is the index of its own.

    Procs see their own GPU first: device 1 of the proc with local rank 1 is another's.
    """
    local = [place.gpus for place in places if place.host_rank == places[rank].host_rank]
    own = [gpus[0] for gpus in local if gpus]
    return list(dict.fromkeys([*own, *(gpu for gpus in local for gpu in gpus)]))


class _Script(Actor):
    """One script on all ranks: starts them, and ends them when one has failed. Lives beside whoever wants it."""

    def __init__(self, procs: ProcMesh, path: str, text: bytes, args: list[str]) -> None:
        self._procs = procs
        self._order = path, text, args

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Nothing is lost: the call that waits for the rank tells it."""
        return True

    @concurrent_endpoint
    async def run(self) -> _Outcome:
        """Run it to the end of all ranks."""
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
        # A death causes exceptions on other ranks, and not the other way.
        failures.sort(key=lambda given: not isinstance(given, BaseException) and given.status >= 0)
        await ranks.end.options(on_error="collect").call()


class _Rank(Actor):
    """Starts one rank of a script in a process of its own, and sees how it ends."""

    def __init__(self) -> None:
        self._pid = 0
        self._over = asyncio.Event()
        self._failing = False
        self._ended = False
        self._reserved: socket.socket | None = None

    @endpoint
    async def prepare(self) -> RankPlace:
        """Tell where this rank is; rank 0 reserves a port."""
        info = context().proc
        own = current_runtime().own
        address, _ = parse_address(own.addresses[0])
        port = 0
        if not current_rank().rank:
            # Bound until the script has ended, and never listening: the kernel gives the port to nobody but who asks
            # for it by number and says SO_REUSEADDR, as torch's store does.
            self._reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._reserved.bind((address, 0))
            port = self._reserved.getsockname()[1]
        return RankPlace(info.host, info.host_rank, address, port, info.gpus)

    @concurrent_endpoint
    async def run(self, path: str, text: bytes, args: list[str], places: list[RankPlace]) -> _Report:
        """Run the script; done when it has ended, or has failed and is about to."""
        rank = current_rank().rank
        where = f"{Path(path).name}, rank {rank} on {places[rank].host}"
        order: Order = where, text, sys.path, os.getpid()
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as open_files:
            order_fd = os.memfd_create("script", os.MFD_CLOEXEC)
            open_files.callback(os.close, order_fd)
            told_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            open_files.callback(os.close, told_fd)
            with open(order_fd, "wb", closefd=False) as written:
                pickle.dump(order, written)
            process = launch(
                # -P: nothing of the working directory in the place of our own modules; -u as torchrun.
                [
                    sys.executable,
                    "-P",
                    "-u",
                    "-m",
                    "monarch_hpc.mesh.scripts.rank",
                    str(order_fd),
                    str(told_fd),
                    path,
                    *args,
                ],
                _complete(os.environ, rank, places),
                stdin=subprocess.DEVNULL,
                pass_fds=(order_fd, told_fd),
                new_session=True,
            )
            self._pid = process.pid
            told = asyncio.Event()
            pid_fd = os.pidfd_open(process.pid)

            def ended() -> None:
                loop.remove_reader(pid_fd)
                os.close(pid_fd)
                with contextlib.suppress(ProcessLookupError):  # what it has forked and left
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()  # it has ended
                self._over.set()
                told.set()

            loop.add_reader(pid_fd, ended)
            loop.add_reader(told_fd, told.set)
            open_files.callback(loop.remove_reader, told_fd)
            await told.wait()
            word: Word | None = None
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(told_fd)
                with open(order_fd, "rb", closefd=False) as overwritten:
                    overwritten.seek(0)
                    word = pickle.load(overwritten)
        if word is not None:
            self._failing = True
            return _Report(where, *word, ended=self._ended)
        return _Report(where, process.returncode, ended=self._ended)

    @concurrent_endpoint
    async def end(self) -> None:
        """End the script's process, if it runs; done when it is gone."""
        if not self._pid or self._over.is_set():
            return
        self._ended = True
        if self._failing and await self._gone():  # it is on its way
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
        """Leave no process behind; where the proc ends meanwhile, the kernel ends the script."""
        await self.end()
        if self._reserved is not None:
            self._reserved.close()


def _complete(inherited: Mapping[str, str], rank: int, places: Sequence[RankPlace]) -> dict[str, str]:
    """The whole environment of the script's process."""
    own = places[rank]
    environment = {**inherited, **environment_of(rank, places, context().proc.run)}
    environment |= retold_gpus(environment, own.gpus, gpus_of(rank, places))
    # Left alone, gloo and nccl guess an interface from the host's name, and on clusters guess wrong.
    for name, address in read_interfaces().items():
        if address == own.address:
            environment.setdefault("GLOO_SOCKET_IFNAME", name)
            environment.setdefault("NCCL_SOCKET_IFNAME", name)
    if environment["LOCAL_WORLD_SIZE"] != "1":
        environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: ranks share the cores
    return environment
