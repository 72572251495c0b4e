"""Routes casts: forwards them to other agents and to this host's procs, and combines the notes that come back.

A state machine without I/O: frames come in, and go out through a `Carrier`. A cast is never opened or sent twice.
The casts of one sender are forwarded in the order of their numbers only: a cast that was overtaken, because a host
on its route was lost, is dropped, and answered with an error. Every cast received is answered in full, whatever
happens to the procs and hosts behind this one, unless its sender is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, Protocol, TypeVar

from monarch_hpc.agent.casts.local_procs import LocalProcs
from monarch_hpc.agent.casts.open_cast import Branch, OpenCastState
from monarch_hpc.agent.casts.reduction import Reduction
from monarch_hpc.agent.casts.tree import TreeRoutes, branches, contains, growth, narrow, position_of
from monarch_hpc.wire.casts import (
    Cast,
    Lost,
    Note,
    NoteKind,
    Spans,
    Target,
    pack_cast,
    pack_lost,
    pack_notes,
    parse_cast,
    parse_notes,
    parse_target,
)
from monarch_hpc.wire.frames import MAX_BUFFERS, Frame, RefusedBuffers, sizes_of

__all__ = ["HOLD_S", "MAX_NOTES_BYTES", "Carrier", "Router"]

HOLD_S = 0.002
"""Time for which an answer is held for others of the same route. Longer than an idle actor takes to answer, so that the
answers of a whole host share a frame; imperceptible to people even four times over, on a route through four hosts."""

MAX_NOTES_BYTES = 1 << 20
"""Answers of this total size are not held any longer: a network needs a tenth of `HOLD_S` to carry them."""

_DEFERRABLE = frozenset({NoteKind.RESULT, NoteKind.ELSEWHERE, NoteKind.PARTIAL, NoteKind.VOID})
"""Notes that may be held; all others report a failure, or the end."""


U = TypeVar("U")
"""A sender of casts, as the carrier identifies it."""

U_contra = TypeVar("U_contra", contravariant=True)


class Carrier(Protocol[U_contra]):
    """Sends frames for a router. Its methods never block or fail: losses are reported to the router later."""

    def to_host(self, rank: int, frame: Frame) -> None:
        """Send *frame* to the agent of a host."""
        ...

    def to_proc(self, incarnation: int, frame: Frame) -> None:
        """Send *frame* to a proc of this host."""
        ...

    def to_upstream(self, upstream: U_contra, frame: Frame) -> None:
        """Send *frame* back to a sender of casts."""
        ...

    def later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Run *callback* after *delay_s* seconds."""
        ...

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        """Run *callback* once the engine has handled all events of this turn."""
        ...


class Router(Generic[U]):
    """One agent's part in all casts. All methods must be called on the engine's driver.

    Args:
        rank: rank of this host.
        fanout: number of hosts that each host forwards a cast to, config key `transport.cast_fanout`.
        usable: whether the agent of a host can be reached, as far as is known.
        max_frame_bytes: config key `transport.max_frame_bytes`.
    """

    def __init__(
        self,
        rank: int,
        num_hosts: int,
        fanout: int,
        usable: Callable[[int], bool],
        carrier: Carrier[U],
        max_frame_bytes: int,
    ) -> None:
        self._rank = rank
        self._sizes = [num_hosts]  # the first number of hosts, and those after each growth
        self._fanout = fanout
        self._carrier = carrier
        self._max_frame_bytes = max_frame_bytes
        self._routes = TreeRoutes(num_hosts, usable)
        self._last: dict[str, dict[int, int]] = {}  # run -> sender -> number of the last cast forwarded
        self._open_casts: dict[tuple[int, int], OpenCastState[U]] = {}
        self._procs = LocalProcs()
        self._targets: dict[bytes, Target] = {}
        self._outgoing: dict[U, list[Note]] = {}

    @property
    def num_in_flight(self) -> int:
        """Number of casts that have not been answered and handled by all."""
        return len(self._open_casts)

    def grow(self, num_hosts: int) -> None:
        """Learn the number of hosts, which never falls: hosts that leave keep their ranks."""
        if num_hosts > self._sizes[-1]:
            self._sizes.append(num_hosts)
            self._routes.num_hosts = num_hosts

    # ---- procs of this host ----

    def on_proc(self, run: str, mesh: int, rank: int, incarnation: int, restarts: int = 0) -> None:
        """Add a proc that is ready.

        Args:
            restarts: the number of earlier procs of its rank. A cast names, for each rank, the life that it is for: it
                does not reach another one, and the host of that life answers for it.
        """
        self._procs.add(run, mesh, rank, incarnation, restarts)

    def on_proc_ended(self, run: str, mesh: int, rank: int, cause: str) -> None:
        """Handle the end of a proc: its missing answers become errors."""
        incarnation = self._procs.end(run, mesh, rank, cause)
        if incarnation is not None:
            self._give_up_proc(incarnation, NoteKind.DIED, cause)

    def on_proc_silent(self, incarnation: int, cause: str) -> None:
        """Handle the loss of the channel to a proc that may be alive."""
        self._give_up_proc(incarnation, NoteKind.UNKNOWN, cause)

    def on_run_closed(self, run: str) -> None:
        """Forget a run, whose procs have ended."""
        self._last.pop(run, None)
        self._procs.forget_run(run)

    def keep(self, run: str, mesh: int) -> None:
        """Let the programs of all runs cast to a mesh, also when its own run is over."""
        self._procs.keep(run, mesh)

    def _give_up_proc(self, incarnation: int, tag: NoteKind, cause: str) -> None:
        for key, state in list(self._open_casts.items()):
            if state.reduction is not None:
                self._pass_up(state, state.reduction.on_proc_gone(incarnation, tag, key, cause))
            if incarnation in state.places:
                if incarnation in state.unanswered:
                    self._add(state, Note(tag, *key, state.places[incarnation], cause.encode()))
                state.unanswered.discard(incarnation)
                state.unhandled.discard(incarnation)
                self._settle(key, state)

    # ---- down ----

    def on_cast(self, upstream: U, frame: Frame, *, enters: bool = False) -> None:
        """Forward a cast.

        Args:
            enters: whether it comes directly from its sender, so that this host is the root of its tree.

        Raises:
            FrameError: it is not a valid cast.
        """
        cast = parse_cast(frame)
        if enters:
            cast = dataclasses.replace(cast, root=self._rank, low=0, high=self._sizes[-1])
        target = self._targets.get(cast.target)
        if target is None:
            if len(self._targets) >= 1024:  # slices of meshes; an evicted entry is parsed again
                self._targets.clear()
            target = self._targets[cast.target] = parse_target(cast.target)
        key = cast.origin, cast.number
        state = OpenCastState(upstream, cast.answered)
        if cast.functions and cast.answered:
            state.reduction = Reduction(cast.functions, self._max_frame_bytes)
        last = self._last.setdefault(target.run, {})
        if cast.number <= last.get(cast.origin, 0):
            state.notes.append(_lost(key, cast.hosts, "another message of its sender came before it"))
        elif isinstance(cast.buffers, RefusedBuffers):
            last[cast.origin] = cast.number
            state.notes.append(_lost(key, cast.hosts, f"host {self._rank} could not pass it on: {cast.buffers.why}"))
        else:
            last[cast.origin] = cast.number
            self._open_casts[key] = state
            if contains(cast.hosts, self._rank):
                self._deliver(key, state, cast, target)
            self._pass_on(key, state, cast)
        self._settle(key, state)

    def _deliver(self, key: tuple[int, int], state: OpenCastState[U], cast: Cast, target: Target) -> None:
        local = pack_cast(dataclasses.replace(cast, hosts=()))
        for incarnation, at in self._procs.living(target):
            state.places[incarnation] = at
            self._carrier.to_proc(incarnation, local)
        if cast.answered:
            state.unanswered.update(state.places)
            for at, cause in self._procs.causes(target):
                self._add(state, Note(NoteKind.DIED, *key, at, cause.encode()))
        state.unhandled.update(state.places)
        if state.reduction is not None:
            state.reduction.procs.update(state.places)

    def _pass_on(self, key: tuple[int, int], state: OpenCastState[U], cast: Cast) -> None:
        own = position_of(self._rank, cast.root)
        intervals = growth(self._sizes) if own == cast.low == 0 else [(cast.low, cast.high)]
        for piece in [piece for interval in intervals for piece in branches(interval, own, self._fanout)]:
            some = narrow(cast.hosts, piece, cast.root)
            if not some:
                continue
            through = self._routes.through(cast.root, piece)
            if through is None:
                self._add(state, _lost(key, some, "no agent there can be reached"))
                continue
            state.branches[through] = Branch(some, answered=not cast.answered)
            passed = dataclasses.replace(cast, low=piece[0], high=piece[1], hosts=some)
            self._carrier.to_host(through, pack_cast(passed))

    # ---- up ----

    def on_notes_of_proc(self, incarnation: int, frame: Frame) -> None:
        """Handle a proc's answers, and its reports of handled casts.

        Raises:
            FrameError: the frame holds no notes.
        """
        for note in map(_held, parse_notes(frame)):
            key = note.origin, note.number
            state = self._open_casts.get(key)
            if state is None:
                continue
            if note.tag is NoteKind.DONE:
                state.unhandled.discard(incarnation)
            elif incarnation in state.unanswered:
                state.unanswered.discard(incarnation)
                self._add(state, dataclasses.replace(note, place=state.places[incarnation]))
            elif state.reduction is not None:
                self._pass_up(state, state.reduction.on_combined(incarnation, note))
            self._settle(key, state)

    def on_notes_of_host(self, rank: int, frame: Frame) -> None:
        """Handle notes that another agent has forwarded.

        Raises:
            FrameError: the frame holds no notes.
        """
        for note in map(_held, parse_notes(frame)):
            key = note.origin, note.number
            state = self._open_casts.get(key)
            branch = None if state is None else state.branches.get(rank)
            if state is None or branch is None:
                continue
            if note.tag is NoteKind.LAST:
                branch.answered = True
            elif note.tag is NoteKind.DONE:
                branch.done = True
            else:
                self._add(state, note)
            self._settle(key, state)

    def on_host_lost(self, rank: int, cause: str) -> None:
        """Handle the loss of an agent: other hosts take its place in the tree."""
        self._routes.lose(rank)
        self.on_host_cut(rank, cause)

    def on_host_back(self, rank: int) -> None:
        """Use a host again that was lost: it has another agent."""
        self._routes.find(rank)

    def on_host_cut(self, rank: int, cause: str) -> None:
        """Handle a broken channel to an agent: the casts in flight there fail."""
        for key, state in list(self._open_casts.items()):
            branch = state.branches.pop(rank, None)
            if branch is None:
                continue
            if not (branch.answered and branch.done):
                self._add(state, _lost(key, branch.hosts, cause))
            self._settle(key, state)

    def on_upstream_lost(self, upstream: U) -> None:
        """Handle the loss of a sender: its casts need no answers."""
        self._outgoing.pop(upstream, None)
        for key in [key for key, state in self._open_casts.items() if state.upstream == upstream]:
            del self._open_casts[key]

    def _add(self, state: OpenCastState[U], note: Note) -> None:
        self._pass_up(state, [note] if state.reduction is None else state.reduction.add(note))

    def _pass_up(self, state: OpenCastState[U], notes: Iterable[Note]) -> None:
        for note in notes:
            state.notes.append(note)
            state.waiting_bytes += size_of(note)
            if note.tag not in _DEFERRABLE or state.waiting_bytes > MAX_NOTES_BYTES:
                self._send(state)
            elif not state.holding:
                state.holding = True
                self._carrier.later(HOLD_S, partial(self._end_hold, state))

    def _end_hold(self, state: OpenCastState[U]) -> None:
        state.holding = False
        self._send(state)

    def _settle(self, key: tuple[int, int], state: OpenCastState[U]) -> None:
        """Report upstream once all have answered, and once all have handled the cast; then forget the cast."""
        if not state.last and state.all_answered and not self._reduces(state):
            state.last = True
            if state.answered:
                state.notes.append(Note(NoteKind.LAST, *key))
            self._send(state)
        if not state.done and state.all_done:
            state.done = True
            state.notes.append(Note(NoteKind.DONE, *key))
            self._send(state)
        if state.last and state.done and self._open_casts.get(key) is state:
            del self._open_casts[key]

    def _reduces(self, state: OpenCastState[U]) -> bool:
        """Start the next reduction step, once all answers are there; return whether one is in progress."""
        reduction = state.reduction
        if reduction is None or reduction.working:
            return reduction is not None
        order = reduction.next()
        if order is None:
            state.notes += reduction.release()
            return False
        self._carrier.to_proc(*order)
        return True

    def _send(self, state: OpenCastState[U]) -> None:
        """Send the held notes, in one frame with other notes to the same peer in this turn."""
        notes, state.notes, state.waiting_bytes = state.notes, [], 0
        if notes:
            if not self._outgoing:
                self._carrier.at_end_of_turn(self._flush)
            self._outgoing.setdefault(state.upstream, []).extend(notes)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for upstream, notes in outgoing.items():
            for some in _portions(notes):
                self._carrier.to_upstream(upstream, pack_notes(some))


def size_of(note: Note) -> int:
    """The approximate size of *note* in bytes."""
    return 32 + len(note.body) + sum(sizes_of(note.buffers))


def _held(note: Note) -> Note:
    """*note*, or an error in its place if its buffers could not be held."""
    if not isinstance(note.buffers, RefusedBuffers) or not note.buffers:
        return note
    return Note(NoteKind.UNKNOWN, note.origin, note.number, note.place, note.buffers.why.encode())


def _portions(notes: Iterable[Note]) -> Iterable[list[Note]]:
    """Split *notes* into frames small enough not to block the channel for long."""
    some: list[Note] = []
    num_bytes = num_buffers = 0
    for note in notes:
        size = size_of(note)
        if some and (num_bytes + size > MAX_NOTES_BYTES or num_buffers + len(note.buffers) > MAX_BUFFERS):
            yield some
            some, num_bytes, num_buffers = [], 0, 0
        some.append(note)
        num_bytes += size
        num_buffers += len(note.buffers)
    yield some


def _lost(key: tuple[int, int], hosts: Spans, cause: str) -> Note:
    return Note(NoteKind.LOST, *key, 0, pack_lost(Lost(hosts, cause)))
