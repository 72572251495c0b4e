"""Finds and dials an agent's head: the one that the allocation's directory names at the start, and its heirs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from monarch_hpc.agent.succession.elections import Elections
from monarch_hpc.allocation.files import is_over
from monarch_hpc.allocation.heads import HeadPlace, read_head
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import TransportError
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node

__all__ = ["HeadSearch"]

_DIAL_RETRY_S = 0.1
_POLL_S = 0.05


class HeadSearch:
    """The way of one agent to its head. All methods must be called on the engine's driver.

    Args:
        folder: where the head's file is.
        deadline: of the first search.
        forwarders: set to the head's addresses.
        over: whether this agent leaves, so that the search ends.
        join: called with the channel to a head that this agent follows, and what is wrong with this host.
        lost: called if an heir cannot be reached.
        failed: called if there is no head until the deadline.
        doubt: given for an agent that was fenced, which asks again until the deadline whatever goes wrong. Asks whether
            the head's host, of the given rank, has left the job, and calls back if so: this head does not come back.
    """

    def __init__(
        self,
        engine: Engine,
        node: Node,
        elections: Elections,
        folder: Path,
        deadline: Deadline,
        forwarders: list[str],
        over: Callable[[], bool],
        join: Callable[[FrameChannel, str], None],
        lost: Callable[[TransportError], None],
        failed: Callable[[str], None],
        *,
        doubt: Callable[[int, Callable[[], None]], None] | None = None,
    ) -> None:
        self._engine = engine
        self._node = node
        self._elections = elections
        self._folder = folder
        self._deadline = deadline
        self._forwarders = forwarders
        self._over = over
        self._join = join
        self._lost = lost
        self._failed = failed
        self._doubt = doubt

    def find(self, problem: str) -> None:
        """Join the head; *problem* is what is wrong with this host."""
        if self._over():
            return
        head = read_head(self._folder)
        if head is None and self._doubt is not None and is_over(self._folder):
            self._failed("the allocation has ended")
        elif head is not None:
            self._forwarders[:] = head.addresses
            self._node.dial(head.addresses, 0, partial(self._found, problem, head))
        elif self._deadline.passed():
            self._failed(f"no head after {self._deadline.timeout_s:.0f} s: {self._folder} has no head.<term>.json")
        else:
            self._engine.call_later(_POLL_S, partial(self.find, problem))

    def _found(self, problem: str, head: HeadPlace, result: FrameChannel | TransportError) -> None:
        if not isinstance(result, TransportError):
            self._elections.follow(head, result.peer.incarnation)
            self._join(result, problem)
        elif self._doubt is not None and is_over(self._folder):
            self._failed("the allocation has ended")
        elif (result.retryable or self._doubt is not None) and not self._deadline.passed():
            if self._doubt is not None:
                self._doubt(head.rank, partial(self._on_gone, head))
            self._engine.call_later(_DIAL_RETRY_S, partial(self.find, problem))
        else:
            self._failed(f"cannot reach the head: {result}")

    def _on_gone(self, head: HeadPlace) -> None:
        if read_head(self._folder) == head and not self._over():
            self._failed("the head's host has left the job, and no other head has been elected")

    def follow(self, heir: HeadPlace) -> None:
        """Join the head of a later term."""
        if not self._over():
            self._forwarders[:] = heir.addresses
            self._node.dial(heir.addresses, 0, partial(self._found_heir, heir))

    def _found_heir(self, heir: HeadPlace, result: FrameChannel | TransportError) -> None:
        if isinstance(result, TransportError):
            self._lost(result)
        elif self._elections.follow(heir, result.peer.incarnation):
            self._join(result, "")
        else:
            result.close("its term is over")
