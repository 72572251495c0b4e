"""An explicit-state model of healing: ranks that crash between any two actions, messages delayed and reordered at will.

A rank's parameters are the tuple of the steps applied to them. When its replica group has summed the gradients, it
enters the barrier of the commit, and applies the step once it has passed, or when it is told to roll forward: an update
that is applied before the barrier, and can be taken back, looks the same from outside. The decision is the real one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from monarch_hpc.tensor.healing.decision import TornError, decide
from monarch_hpc.tensor.stream.holdings import RankStatus

__all__ = ["Broken", "Model"]


class Broken(Exception):
    """The protocol does not hold."""


class Rank(NamedTuple):
    """A rank.

    Attributes:
        up: whether it lives.
        born: epoch of its process.
        epoch: the one that it takes part in.
        done: steps that are committed; None for a replacement without state.
        phase: ``idle``; ``summing`` gradients; in the ``barrier``; ``passed`` it; ``failed``.
        step: the step that it has begun.
        prepared: the step that it has prepared, and not seen committed; 0 if there is none.
    """

    up: bool
    born: int
    epoch: int
    done: tuple[int, ...] | None
    phase: str = "idle"
    step: int = 0
    prepared: int = 0


class Message(NamedTuple):
    """A message to or from a rank, of an epoch and a process."""

    kind: str
    rank: int
    born: int
    epoch: int
    content: Any = 0


class Program(NamedTuple):
    """The program: its mode, the newest version known and seen, the decided one, and answers so far."""

    mode: str
    epoch: int
    known: int
    seen: int
    version: int
    answers: tuple[Any, ...]


class State(NamedTuple):
    """All of it, with the crashes that may still come, zombies, and who has entered which collective."""

    program: Program
    ranks: tuple[Rank, ...]
    network: frozenset[Message]
    entered: frozenset[tuple[int, int, str, int]]
    crashes: int
    suspicions: int
    zombies: tuple[tuple[int, Rank], ...]


class Model:
    """Replica groups of *dp* ranks, *tp* of them, and *steps* steps.

    Args:
        crashes: number of ranks that die.
        suspicions: number of ranks that are taken for dead and go on.
        mutant: a rule that is left out.
    """

    def __init__(self, dp: int, tp: int, steps: int, crashes: int, suspicions: int = 0, mutant: str = "") -> None:
        self.num_ranks, self.steps, self.mutant = dp * tp, steps, mutant
        self.groups = [[other for other in range(dp * tp) if other % tp == rank % tp] for rank in range(dp * tp)]
        ranks = tuple(Rank(True, 0, 0, ()) for _ in range(dp * tp))
        steps_sent = frozenset(Message("step", rank, 0, 0, 1) for rank in range(dp * tp))
        program = Program("run", 0, 0, 0, 0, ())
        self.initial = State(program, ranks, steps_sent, frozenset(), crashes, suspicions, ())

    def check(self, limit: int = 200_000) -> int:
        """Visit all states; return their number.

        Raises:
            Broken: parameters are wrong, a step is skipped, or nothing can happen any more before the end.
        """
        seen, left = {self.initial}, deque([self.initial])
        while left:
            state = left.popleft()
            self._check(state)
            followers = [self._forget(one) for one in self._followers(state)]
            if not followers and not self._is_final(state):
                raise Broken(f"stuck: {state}")
            for one in followers:
                if one not in seen:
                    seen.add(one)
                    left.append(one)
            assert len(seen) <= limit
        return len(seen)

    def _is_final(self, state: State) -> bool:
        if state.program.mode == "lost":
            return True
        whole = tuple(range(1, self.steps + 1))
        return state.program.mode == "run" and all(rank.up and rank.done == whole for rank in state.ranks)

    def _check(self, state: State) -> None:
        alive = [rank for rank in state.ranks if rank.up and rank.done is not None]
        for rank in alive:
            if rank.done != tuple(range(1, len(rank.done or ()) + 1)):
                raise Broken(f"a rank has applied {rank.done}")
        versions = [len(rank.done or ()) for rank in alive if rank.epoch == state.program.epoch]
        if state.program.mode == "run" and versions and max(versions) - min(versions) > 1:
            raise Broken(f"ranks are at {versions}")

    def _forget(self, state: State) -> State:
        """The state without what nobody can meet any more."""
        live = {(one.epoch, one.step) for one in (*state.ranks, *(zombie for _, zombie in state.zombies)) if one.step}
        ahead = {(state.program.epoch, step) for step in range(state.program.seen, self.steps + 1)}
        entered = frozenset(one for one in state.entered if one[:2] in live | ahead)
        return state._replace(entered=entered, zombies=tuple(sorted(state.zombies)))

    # ---- what can happen ----

    def _followers(self, state: State) -> Iterator[State]:
        if state.program.mode == "lost":  # which is an error: no rank has a copy of a part
            return
        for place, rank in enumerate(state.ranks):
            if rank.up:
                yield from self._work(state, place, rank, zombie=False)
                if state.crashes:
                    dead = rank._replace(up=False, phase="idle", step=0)
                    yield self._with(state, place, dead)._replace(crashes=state.crashes - 1)
                if state.suspicions and rank.done is not None:
                    gone = self._with(state, place, rank._replace(up=False))
                    zombies = (*state.zombies, (place, rank))
                    yield self._fence(gone._replace(suspicions=state.suspicions - 1, zombies=zombies))
        for place, rank in state.zombies:
            yield from self._work(state, place, rank, zombie=True)
        if any(not rank.up for rank in state.ranks):
            yield self._fence(state)
        for message in state.network:
            yield from self._arrive(state._replace(network=state.network - {message}), message)

    @staticmethod
    def _with(state: State, place: int, rank: Rank, *sent: Message) -> State:
        ranks = (*state.ranks[:place], rank, *state.ranks[place + 1 :])
        return state._replace(ranks=ranks, network=state.network | set(sent))

    def _work(self, state: State, place: int, rank: Rank, *, zombie: bool) -> Iterator[State]:
        def after(new: Rank, *sent: Message, entered: tuple[int, int, str, int] | None = None) -> State:
            met = state.entered | {entered} if entered else state.entered
            if not zombie:
                return self._with(state, place, new, *sent)._replace(entered=met)
            zombies = tuple((at, new if (at, one) == (place, rank) else one) for at, one in state.zombies)
            return state._replace(zombies=zombies, network=state.network | set(sent), entered=met)

        epoch, step = rank.epoch, rank.step
        if rank.phase == "summing" and all((epoch, step, "sum", one) in state.entered for one in self.groups[place]):
            if self.mutant == "no barrier":
                yield after(rank._replace(phase="passed", prepared=step))
            else:
                yield after(rank._replace(phase="barrier", prepared=step), entered=(epoch, step, "commit", place))
        if rank.phase == "barrier" and all(
            (epoch, step, "commit", one) in state.entered for one in range(self.num_ranks)
        ):
            yield after(rank._replace(phase="passed"))
        if rank.phase == "passed":
            done = (*(rank.done or ()), step)
            reply = Message("done", place, rank.born, epoch, step)
            yield after(rank._replace(phase="idle", step=0, prepared=0, done=done), reply)
        misses = any(not other.up for other in state.ranks)
        if self.mutant == "reply without version" and misses and rank.phase in ("summing", "barrier"):
            yield after(rank._replace(phase="failed"), Message("value", place, rank.born, epoch, step))

    # ---- the program ----

    def _fence(self, state: State) -> State:
        program, epoch = state.program, state.program.epoch + 1
        ranks = tuple(
            rank if rank.up and rank.done is not None else Rank(True, epoch, epoch, None) for rank in state.ranks
        )
        whole = [(place, rank) for place, rank in enumerate(ranks) if rank.done is not None]
        if any(all(ranks[one].done is None for one in group) for group in self.groups):
            return state._replace(program=program._replace(mode="lost"), ranks=ranks, network=frozenset())
        fences = {Message("fence", place, rank.born, epoch) for place, rank in whole}
        program = program._replace(mode="status", epoch=epoch, answers=())
        return state._replace(program=program, ranks=ranks, network=state.network | fences)

    def _arrive(self, state: State, message: Message) -> Iterator[State]:
        kind, place, born, epoch, content = message
        program, rank = state.program, state.ranks[place]
        if kind in ("step", "fence", "roll", "fill"):
            if rank.up and rank.born == born:
                yield from self._at_rank(state, message, rank)
            else:
                yield state
            return
        stale = epoch != program.epoch or rank.born != born
        if kind in ("done", "value"):
            if stale and not (self.mutant == "late messages" and kind == "done"):
                yield state
                return
            known = max(program.known, content) if kind == "done" else program.known
            if program.mode != "run":
                yield state._replace(program=program._replace(known=known)) if self.mutant == "late messages" else state
                return
            new = program._replace(known=known, seen=max(program.seen, content))
            sent: set[Message] = set()
            if program.seen < new.seen < self.steps:
                sent = {Message("step", at, one.born, epoch, new.seen + 1) for at, one in enumerate(state.ranks)}
            yield state._replace(program=new, network=state.network | sent)
        elif stale or (kind, program.mode) not in (("status", "status"), ("rolled", "roll"), ("filled", "fill")):
            yield state
        else:
            answers = tuple(sorted((*program.answers, (place, content))))
            yield self._gathered(state._replace(program=program._replace(answers=answers)))

    def _gathered(self, state: State) -> State:
        program = state.program
        whole = [place for place, rank in enumerate(state.ranks) if rank.done is not None]
        if program.mode == "status" and len(program.answers) == len(whole):
            statuses = {place: RankStatus(content[0], content[1], "") for place, content in program.answers}
            known = 0 if self.mutant == "no known version" else program.known
            try:
                version = decide(statuses, known)
            except TornError as error:
                if self.mutant == "no roll forward":
                    version = max(program.known, *(status.version for status in statuses.values()))
                else:
                    raise Broken(f"torn: {error}") from error
            if version < program.seen:
                raise Broken(f"the program has seen step {program.seen}, decided is {version}")
            rolls = {Message("roll", at, state.ranks[at].born, program.epoch, version) for at in whole}
            program = program._replace(mode="roll", version=version, known=max(program.known, version), answers=())
            return state._replace(program=program, network=state.network | rolls)
        if program.mode == "roll" and len(program.answers) == len(whole):
            blank = [place for place in range(self.num_ranks) if place not in whole]
            fills: set[Message] = set()
            for place in blank:
                donor = next(one for one in self.groups[place] if one in whole)
                held = dict(program.answers)[donor]
                fills.add(Message("fill", place, state.ranks[place].born, program.epoch, held))
            program = program._replace(mode="fill", answers=tuple((at, ()) for at in whole))
            state = state._replace(program=program, network=state.network | fills)
        if program.mode == "fill" and len(program.answers) == self.num_ranks:
            program = program._replace(mode="run", seen=program.version, answers=())
            sent: set[Message] = set()
            if program.version < self.steps:
                sent = {
                    Message("step", at, one.born, program.epoch, program.version + 1)
                    for at, one in enumerate(state.ranks)
                }
            state = state._replace(program=program, network=state.network | sent)
        return state

    # ---- ranks ----

    def _at_rank(self, state: State, message: Message, rank: Rank) -> Iterator[State]:
        kind, place, born, epoch, content = message
        if kind == "fence":
            if epoch > rank.epoch and rank.phase != "passed":  # to note that it passed takes no communication
                answer = len(rank.done or ()), rank.prepared
                stopped = rank._replace(epoch=epoch, phase="idle", step=0)
                yield self._with(state, place, stopped, Message("status", place, born, epoch, answer))
            elif epoch <= rank.epoch:
                yield state
            return
        if kind == "step":
            fits = rank.done is not None and rank.phase == "idle" and len(rank.done) == content - 1
            if fits and (epoch == rank.epoch or self.mutant == "late messages"):
                begun = rank._replace(phase="summing", step=content, prepared=0)
                entered = state.entered | {(rank.epoch, content, "sum", place)}
                yield self._with(state, place, begun)._replace(entered=entered)
            elif epoch < rank.epoch or (rank.done is not None and len(rank.done) >= content):
                yield state
            return
        if epoch != rank.epoch:
            yield state
        elif kind == "roll":
            done = rank.done or ()
            if self.mutant == "roll forward twice":
                done = (*done, content) if content else done
            elif len(done) == content - 1 and self.mutant != "no roll forward":
                if rank.prepared != content:
                    raise Broken(f"rank {place} must go to {content}, and has not prepared it")
                done = (*done, content)
            rolled = rank._replace(done=done, prepared=0)
            yield self._with(state, place, rolled, Message("rolled", place, born, epoch, done))
        else:
            filled = rank._replace(done=content)
            yield self._with(state, place, filled, Message("filled", place, born, epoch, ()))
