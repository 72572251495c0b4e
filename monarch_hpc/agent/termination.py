"""The end of an agent by Slurm: it learns when that comes, and what SIGTERM means when it does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.head.deadline import HeadDeadline
from monarch_hpc.agent.head.link import ChannelLink, Link
from monarch_hpc.agent.resources.job_end import KILL_WAIT_S, JobEndSource
from monarch_hpc.agent.resources.last_leave import LastLeave
from monarch_hpc.config import Config
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.deadline import Terminated
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.start import TERMINATED

__all__ = ["Termination"]

_JOIN_S = 2.0
"""Time that the other agents take to join an heir, of the `KillWait` that Slurm leaves."""


class Termination:
    """Handles SIGTERM: on the first host the head decides when all agents end, see `agent.head.deadline`.

    Args:
        segments: the host's folder for shared memory; empty if there is none.
        head_link: returns the link to the head.
        end: ends this agent.
    """

    def __init__(
        self,
        engine: Engine,
        args: AgentArgs,
        config: Config,
        segments: str,
        head_link: Callable[[], Link],
        end: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._args = args
        self._config = config
        self._segments = segments
        self._head_link = head_link
        self._end = end
        self._head: HeadDeadline | None = None
        self._source: JobEndSource | None = None
        self._last: LastLeave | None = None
        self._terminated = False

    def start_head(self, head: HeadDeadline) -> None:
        """Ask Slurm on behalf of the head, which is on this host."""
        self._head = head
        self._source = JobEndSource(self._engine, self._args, self._config, head.on_job_end, head.on_warning)
        if self._terminated:  # while there was no head; others are about to join this one, and may stay
            self._engine.call_later(_JOIN_S, self.on_sigterm)

    def tell_again(self, send: Callable[[Message], None]) -> None:
        """Tell a head that this agent has joined of a SIGTERM that it got before."""
        if self._terminated:
            send(Terminated())

    def outlast_head(self, ended: Callable[[], None], *, wanted: bool = False) -> None:
        """Call *ended* when this agent, which has cleared its host, may end: it has lost its head, or is an heir.

        Args:
            wanted: see `LastLeave`.
        """
        if self._terminated and not wanted:
            ended()  # Slurm ends the job already
        elif self._last is None:
            done = partial(self._engine.call_soon, ended)
            held = self._config.slurm.allocate_by == "salloc"
            self._last = LastLeave(
                self._args, self._config.agent.outlast_s, done, self._args.first_rank, wanted=wanted, held=held
            )
            self._last.begin()

    def mark(self) -> None:
        """Report the agent's SIGTERM to the procs of this host. Callable from any thread."""
        if self._segments:
            with contextlib.suppress(OSError):
                Path(self._segments, TERMINATED).touch(0o600)

    def on_sigterm(self) -> None:
        """End, as Slurm demands of all processes of a job some time before it kills them."""
        self._terminated = True
        if self._last is not None:
            self._last.end()
            return
        if self._head is not None and self._source is not None:
            self._head.on_sigterm(self._source.grace_s, self._config.procs.stop_s)
            return
        link = self._head_link()
        if isinstance(link, ChannelLink) and link.channel.error is None:  # else there is no head that could end it
            link.send(Terminated())
            grace_s = self._config.limits.preempt_grace_s
            self._engine.call_later(KILL_WAIT_S if grace_s is None else grace_s, self._end)  # the head ends it earlier
        else:
            self._end()
