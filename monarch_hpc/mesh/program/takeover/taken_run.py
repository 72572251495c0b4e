"""A run that this program has taken over, as users see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.kept.takes import Takes
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.calls.answer import is_result, read_answer
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.frames import Frame

__all__ = ["TakenRun", "UnfetchedAnswer"]


class UnfetchedAnswer(Future[Any]):
    """The answer to a call of the earlier program, which that has not read; also of a call that is still under way.

    `get` and `await` return the value or raise the exception, as for any call. It stays in its proc until then, and is
    lost with it.

    Attributes:
        mesh: name of the actor mesh.
        endpoint: name of the endpoint.
        rank: rank of the actor in its mesh.
        host: name of its host.
        answered: whether the actor had answered at the takeover; otherwise the call was under way.
    """

    def __init__(
        self, engine: Engine, proc: ProcRef, call: tuple[int, int], mesh: str, endpoint: str, rank: int, answered: bool
    ) -> None:
        super().__init__(engine, lambda: f"actor {mesh}[{rank}] on {proc.host}, endpoint {endpoint}")
        self.mesh = mesh
        self.endpoint = endpoint
        self.rank = rank
        self.host = proc.host
        self.answered = answered
        self._proc = proc
        self._call = call
        self._asked = False

    def ask(self) -> None:
        """Have the proc send the answer; done by the first read."""
        takes = Takes.current
        if not self._asked and takes is not None:
            self._asked = True
            takes.fetch(self._proc, *self._call, self._on_answer)

    def _on_answer(self, given: Frame | MonarchError) -> None:
        self._complete(given, not is_result(given))

    def _begin_wait(self) -> int:
        self.ask()
        return super()._begin_wait()

    def _rebuild(self, raw: Any) -> Any:
        value, failure = read_answer(raw)
        if failure is not None:
            raise failure
        return value


@dataclass(frozen=True, slots=True)
class TakenRun:
    """What `takeover` returns.

    Attributes:
        run: the run's id.
        meshes: the program's meshes of procs and of actors by name; of several with a name, the later ones have
            ``#2``, ``#3`` and so on at its end.
        unfetched: the answers that the earlier program has not read, those that came first in the front.
        in_hand: the answers to the last call that each thread of it has read, or was about to: only its own records can
            tell which.
        num_dropped: how many such answers were dropped, because they were more than `run.kept_bytes` (config key).
        problems: the meshes that could not be taken over, by name, and why: the class of an actor is not found here,
            or all procs of a mesh are dead.
    """

    run: str
    meshes: Mapping[str, ProcMesh | ActorMesh[Any]]
    unfetched: Sequence[UnfetchedAnswer]
    in_hand: Sequence[UnfetchedAnswer]
    num_dropped: int
    problems: Mapping[str, str]
