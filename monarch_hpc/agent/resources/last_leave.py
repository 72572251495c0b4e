"""The agent that leaves last after the loss of the head: it cancels the job if nothing else will end it.

A job goes on without its first host (``--no-kill``), and without the batch script there, which would have ended it.
Slurm takes that host out of the job after half a minute, or after `SlurmdTimeout`; until then its state is unknown.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.allocation.changes import CHANGES, HeadChange, render_change
from monarch_hpc.allocation.files import write_ended, write_released
from monarch_hpc.allocation.ready import Ready, ReadyHost, load_ready
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.death import EXIT_CODES, DeathKind
from monarch_hpc.core.errors import ConfigError, MonarchError
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.address import parse_address

__all__ = ["LOOK_S", "LastLeave", "is_listening", "others_to_ask"]

_ASKED = 16
"""Agents that are looked for before this one considers itself the last: of so many at least one lives, or a rack is
off, and then `monarch-hpc status` finds the ghost."""

LOOK_S = 1.0
"""Time for a connection to another agent; one that lives accepts it within a round trip."""

_POLL_S = 5.0
"""Interval of questions to Slurm, by one agent of the job."""

_SURE = 3
"""Polls in a row at which the batch script's host works, before it counts as working: one that goes down refuses
connections at first."""

_ANSWER_S = 10.0

_log = Logger(__name__)


def others_to_ask(ready: Ready, rank: int) -> list[ReadyHost]:
    """Return the hosts whose agent, if it lives, leaves later than that of *rank*.

    They are those below it in the same job, but the head's.
    """
    job_id = next((host.job_id for host in ready.hosts if host.rank == rank), 0)
    below = (host for host in ready.hosts if host.rank < rank and host.rank != ready.head)
    return [host for host in below if not job_id or host.job_id == job_id][:_ASKED]


def is_listening(addresses: Iterable[str]) -> bool | None:
    """Tell whether a process listens at one of *addresses*; None if no host answers there at all."""
    answer = None
    for address in addresses:
        try:
            with socket.create_connection(parse_address(address), LOOK_S):
                return True
        except ConnectionRefusedError:
            answer = False
        except (OSError, MonarchError):
            continue
    return answer


class LastLeave:
    """Keeps this agent until its job will end without it. It works on a thread.

    Args:
        limit_s: config key `agent.outlast_s`.
        done: called once, on that thread, when this agent may end.
        batch_rank: rank of the host on which the batch script was started.
        poll_s: interval of looks.
        wanted: whether the allocation ends because somebody wants it, and this agent, which was the head, is the last.
        held: whether salloc holds the job, which has no batch script: its script is a step, and may be gone.
    """

    def __init__(
        self,
        args: AgentArgs,
        limit_s: float,
        done: Callable[[], None],
        batch_rank: int = 0,
        poll_s: float = _POLL_S,
        *,
        wanted: bool = False,
        held: bool = False,
    ) -> None:
        self._args = args
        self._limit_s = limit_s
        self._done = done
        self._batch_rank = batch_rank
        self._poll_s = poll_s
        self._wanted = wanted
        self._held = held
        self._over = threading.Event()

    def begin(self) -> None:
        """Begin; at once if the job is not the allocation's own."""
        if self._args.slurm_job_id is None:
            self.end()
        else:
            threading.Thread(target=self._work, name="monarch-last-leave", daemon=True).start()

    def end(self) -> None:
        """Let this agent end."""
        if not self._over.is_set():
            self._over.set()
            self._done()

    def _work(self) -> None:
        try:
            ready = load_ready(self._args.folder)
            others = [] if self._wanted else others_to_ask(ready, self._args.rank)
            if not any(is_listening(host.addresses) for host in others):
                self._outlast(ready)
        except (OSError, MonarchError) as error:
            _log.warning("whether the job ends without this agent is unknown: %s", error)
        finally:
            self.end()

    def _outlast(self, ready: Ready) -> None:
        from monarch_hpc.slurm.commands.client import SlurmClient
        from monarch_hpc.slurm.ghost import ghost_in_words, runs_without

        batch = next((host for host in ready.hosts if host.rank == self._batch_rank), None)
        job_id, names = self._args.slurm_job_id, ready.names
        assert job_id is not None
        slurm = SlurmClient(self._args.environment, _ANSWER_S)
        if self._held and self._wanted and self._args.rank == self._batch_rank:
            if not _runs_here(self._args.directory / "job.sh"):  # else it cancels the job, after its epilogue
                self._write_down(job_id, "")
                slurm.cancel(job_id)
            return
        deadline = Deadline(self._limit_s)
        num_working = 0
        while not deadline.passed():
            with contextlib.suppress(MonarchError):  # it could not be asked
                job = slurm.find_job(job_id)
                batch_host = names.get(self._batch_rank, "") or (job.batch_host if job is not None else "")
                if job is None or not job.state.phase.alive:
                    return
                if runs_without(job, batch_host):
                    why = ghost_in_words(job, ready.head_name, batch_host)
                    _log.warning("job %s is cancelled: %s", job_id, why)
                    self._write_down(job_id, why)
                    slurm.cancel(job_id)
                    return
            works = batch is not None and is_listening(batch.addresses) is not None
            num_working = num_working + 1 if works else 0
            if num_working == _SURE or self._over.wait(self._poll_s):
                return  # that host works: its script ends the job when all agents have left
        _log.warning("Slurm has not said within %.0f s what has become of the first host", self._limit_s)

    def _write_down(self, job_id: int, why: str) -> None:
        """Leave word for the login side, which would learn from Slurm only that the job was cancelled."""
        folder, kind = self._args.folder, DeathKind.NODE_FAILURE
        if self._args.first_rank:
            return  # the files tell of the job that the allocation began with
        try:
            if self._wanted:
                write_ended(folder, job_id, 0)
                return
            write_released(folder, why)
            write_ended(folder, job_id, EXIT_CODES[kind])
            _append(folder / CHANGES, render_change(HeadChange(time.time(), "ends", "", kind.value, why)))
        except (OSError, ConfigError) as error:
            _log.error("cannot write down why the job ends: %s", error)


def _runs_here(script: Path) -> bool:
    """Tell whether a process of this host runs a shell script."""
    word = str(script).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if word in path.read_bytes().split(b"\0"):
                return True
    return False


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "ab") as file:
        file.write(line)
