"""The memories that actors of this process lend: they end with their actor, and are counted until they do."""

from __future__ import annotations

import _thread
import contextlib
from functools import partial

from monarch_hpc.actor.context import Context
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import ForkedError
from monarch_hpc.transport.memory.memory import Memory

__all__ = ["lend"]

_lent: dict[int, set[bytes]] = {}  # identifiers, by number of the actor: 0 for the program
_lock = _thread.allocate_lock()


def lend(runtime: Runtime, maker: Context, memory: Memory) -> None:
    """Revoke *memory* when the actor of *maker* ends, unless it was revoked before; and record it until then."""
    identifier, num_bytes = memory.parts.id, memory.lent_bytes
    recorder, actor, mark = runtime.recorder, maker.actor, maker.mark
    with _lock:
        first = actor not in _lent
        _lent.setdefault(actor, set()).add(identifier)
    if first:  # once, since an actor may lend and drop any number
        maker.own(partial(_end, runtime, actor, str(maker.actor_id)))
    recorder.lent(mark, 1, num_bytes)

    def closed() -> None:
        with _lock:
            _lent.get(actor, set()).discard(identifier)
        recorder.lent(mark, -1, -num_bytes)

    memory.on_closed = closed


def _end(runtime: Runtime, actor: int, owner: str) -> None:
    """Revoke what an actor still lends, which has ended."""
    with _lock:
        left = _lent.pop(actor, set())
    with contextlib.suppress(ForkedError):
        for identifier in left:
            if not runtime.engine.closed:
                runtime.node.own_memory.grants.revoke(identifier, f"its owner {owner} has ended", lambda: None)
