"""The laws of calls, checked on what senders and actors wrote down: pure.

- order: what one sender sends to one actor is begun in the order sent.
- once: no message is begun twice.
- nothing lost: what was sent to an actor that lived on is begun, unless its sender gave up; what was answered arrives.
- no call that blocks for ever: each has an outcome.
- no failure without a cause: a call fails as lost only if its actor is gone.
- one at a time: an actor begins nothing else, concurrent endpoints aside, before it has finished; and its code runs on
  one thread, also that of endpoints which interleave where they await something.
- stops: what a sender has sent before it stops an actor is begun, what it sends afterwards is not, and the reason is
  in each `ActorDied` of an actor that ended for nothing else.
- hooks: each failure of a child is reported once while its owner lives and is not stopping; one after the other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from typing import get_args

from monarch_hpc.core.dataclass import dataclass

__all__ = [
    "Began",
    "Closed",
    "Concluded",
    "Event",
    "Finished",
    "Gone",
    "Judged",
    "Overlap",
    "Sent",
    "Stopping",
    "Told",
    "Untold",
    "Violation",
    "check",
    "decode",
    "encode",
    "token",
]

_GONE = frozenset(
    {"ActorDied", "ProcDied", "HostLost", "DeliveryUnknown", "SpawnError", "BootstrapFailed", "PortClosed"}
)
_GIVEN_UP = frozenset({"CallTimeout", "CancelledError"})
_FAILED = frozenset({"ValueError", "ActorFailed", "TypeError"})
"""What comes of an endpoint that fails: its exception, as itself or in words, or that its result cannot be sent."""

Key = tuple[str, int]
"""A message: its sender, and the sender's count of messages."""


@dataclass(frozen=True)
class Sent:
    """Written before a message is sent.

    Attributes:
        targets: the actors; those of which one is chosen, if *chooses*.
        replies: whether an outcome is waited for.
        limited: its sender may give up.
        fails: the endpoint raises, or returns what cannot be sent.
        beside: the endpoint is concurrent.
        after: the endpoint answers after it has returned, if the actor lives.
    """

    sender: str
    number: int
    targets: list[str]
    replies: bool = True
    chooses: bool = False
    limited: bool = False
    fails: bool = False
    beside: bool = False
    after: bool = False


@dataclass(frozen=True)
class Concluded:
    """What a sender got.

    Attributes:
        outcomes: by actor, what came of it: ``=TOKEN`` for a value, else the name of an exception's class, with the
            cause of a death after a colon. The key ``*`` stands for all actors of which nothing is said.
        cancelled: the sender cancelled the call.
    """

    sender: str
    number: int
    outcomes: dict[str, str] = field(default_factory=dict)
    cancelled: bool = False


@dataclass(frozen=True)
class Began:
    """An endpoint begins."""

    actor: str
    sender: str
    number: int


@dataclass(frozen=True)
class Finished:
    """An endpoint is about to return, or to raise."""

    actor: str
    sender: str
    number: int


@dataclass(frozen=True)
class Gone:
    """From here on these actors may be gone: written before they are killed or stopped."""

    actors: list[str]


@dataclass(frozen=True)
class Stopping:
    """Written before a sender asks actors to stop, amid what it sends them; *number* counts as that of a message."""

    sender: str
    number: int
    actors: list[str]
    reason: str


@dataclass(frozen=True)
class Told:
    """The hook of an actor begins: a child has failed, which a message had made."""

    actor: str
    sender: str
    number: int


@dataclass(frozen=True)
class Judged:
    """The hook is about to return, or was cancelled."""

    actor: str
    sender: str
    number: int


@dataclass(frozen=True)
class Untold:
    """An actor has waited for long to be told of the failure of a child."""

    actor: str
    sender: str
    number: int


@dataclass(frozen=True)
class Overlap:
    """Two threads ran code of an actor at once."""

    actor: str


@dataclass(frozen=True)
class Closed:
    """A sender has lived to the end, and waits for nothing any more."""

    sender: str


Event = Sent | Concluded | Began | Finished | Gone | Stopping | Told | Judged | Untold | Overlap | Closed
_EVENTS: Mapping[str, type[Event]] = {cls.__name__: cls for cls in get_args(Event)}


@dataclass(frozen=True)
class Violation:
    """A law was broken.

    Attributes:
        law: which one, in a word or two.
    """

    law: str
    text: str


def token(sender: str, number: int) -> str:
    """What the answer to a message must be."""
    return f"{sender}#{number}"


def encode(event: Event) -> bytes:
    """One line."""
    return json.dumps([type(event).__name__, asdict(event)]).encode() + b"\n"


def decode(line: bytes) -> Event:
    """The event that `encode` wrote."""
    name, fields = json.loads(line)
    return _EVENTS[name](**fields)


def check(events: Iterable[Event]) -> list[Violation]:
    """What is wrong with a history; the events of one actor are in the order in which they happened."""
    return _History(events).violations()


class _History:
    def __init__(self, events: Iterable[Event]) -> None:
        self.sent: dict[Key, Sent] = {}
        self.ended: dict[Key, Concluded] = {}
        self.began: dict[str, list[Key]] = defaultdict(list)
        self.steps: dict[str, list[tuple[bool, Key]]] = defaultdict(list)  # whether it begins, and what
        self.finished: dict[Key, set[str]] = defaultdict(set)
        self.gone: set[str] = set()
        self.stops: dict[str, list[Stopping]] = defaultdict(list)
        self.hooks: dict[str, list[tuple[bool, Key]]] = defaultdict(list)  # whether it begins, and of which failure
        self.untold: list[Untold] = []
        self.closed: set[str] = set()
        self.found: list[Violation] = []
        for event in events:
            match event:
                case Sent():
                    self.sent[event.sender, event.number] = event
                case Concluded():
                    key = event.sender, event.number
                    if key in self.ended:
                        self._find("once", key, "has two outcomes")
                    self.ended[key] = event
                case Began():
                    self.began[event.actor].append((event.sender, event.number))
                    self.steps[event.actor].append((True, (event.sender, event.number)))
                case Finished():
                    self.finished[event.sender, event.number].add(event.actor)
                    self.steps[event.actor].append((False, (event.sender, event.number)))
                case Gone():
                    self.gone.update(event.actors)
                case Stopping():
                    for actor in event.actors:
                        self.stops[actor].append(event)
                case Told() | Judged():
                    self.hooks[event.actor].append((isinstance(event, Told), (event.sender, event.number)))
                case Untold():
                    self.untold.append(event)
                case Overlap():
                    self.found.append(Violation("turns", f"two threads ran code of {event.actor} at once"))
                case Closed():
                    self.closed.add(event.sender)

    def violations(self) -> list[Violation]:
        for actor, keys in self.began.items():
            self._check_begins(actor, keys)
            self._check_turns(actor)
        for actor in self.hooks:
            self._check_hooks(actor)
        for missed in self.untold:
            if missed.actor not in self.gone and missed.actor not in self.stops:
                self._find(
                    "hooks", (missed.sender, missed.number), f"made a child fail, and {missed.actor} is not told"
                )
        chosen: dict[Key, list[str]] = defaultdict(list)
        for actor, keys in self.began.items():
            for key in set(keys):
                chosen[key].append(actor)
        for key, sent in self.sent.items():
            if sent.chooses and len(chosen[key]) > 1:
                self._find("once", key, f"was for one actor, and begun by {sorted(chosen[key])}")
            self._check_outcome(key, sent, set(chosen[key]))
        return self.found

    def _find(self, law: str, key: Key, text: str) -> None:
        self.found.append(Violation(law, f"{token(*key)} {text}"))

    # ---- what an actor did ----

    def _check_begins(self, actor: str, keys: list[Key]) -> None:
        last: dict[str, int] = {}
        seen: set[Key] = set()
        for key in keys:
            sent = self.sent.get(key)
            if sent is None or actor not in sent.targets:
                self._find("phantom", key, f"was never sent to {actor}, which began it")
                continue
            if key in seen:
                self._find("once", key, f"was begun twice by {actor}")
                continue
            seen.add(key)
            before = last.get(sent.sender, -1)
            if sent.number < before:
                self._find("order", key, f"was begun by {actor} after {token(sent.sender, before)}")
            last[sent.sender] = max(before, sent.number)
            for stop in self.stops.get(actor, ()):
                if stop.sender == sent.sender and stop.number < sent.number:
                    self._find("stops", key, f"was begun by {actor}, which its sender had stopped before")

    def _check_turns(self, actor: str) -> None:
        running: Key | None = None
        for begins, key in self.steps[actor]:
            sent = self.sent.get(key)
            if sent is None or sent.beside:
                continue
            if begins:
                if running is not None:
                    self._find("turns", key, f"was begun by {actor} while {token(*running)} ran")
                running = key
            elif running == key:
                running = None

    def _check_hooks(self, actor: str) -> None:
        running: Key | None = None
        told: set[Key] = set()
        for begins, key in self.hooks[actor]:
            if not begins:
                running = None
                continue
            if running is not None:
                self._find("hooks", key, f"reached the hook of {actor} while {token(*running)} was handled")
            if key in told:
                self._find("hooks", key, f"reached the hook of {actor} twice")
            told.add(key)
            running = key

    # ---- what a sender got ----

    def _check_outcome(self, key: Key, sent: Sent, begun: set[str]) -> None:
        if sent.sender not in self.closed:
            return  # it died itself: what it wrote last it may not have sent, or read
        ended = self.ended.get(key)
        if sent.replies and ended is None:
            self._find("blocked", key, f"to {sent.targets} has no outcome")
            return
        outcomes = {} if ended is None else ended.outcomes
        cancelled = ended is not None and ended.cancelled
        if sent.chooses:
            self._check_chosen(key, sent, outcomes.get("*", ""), begun, cancelled=cancelled)
            return
        for target in sent.targets:
            outcome = outcomes.get(target, outcomes.get("*", ""))
            self._check_target(key, sent, target, outcome, target in begun, cancelled=cancelled)

    def _check_target(self, key: Key, sent: Sent, target: str, outcome: str, begun: bool, *, cancelled: bool) -> None:
        gave_up = cancelled or (sent.limited and outcome in _GIVEN_UP)
        if outcome.startswith("="):
            self._check_value(key, target, outcome)
        elif sent.replies and not gave_up and not self._excuses(sent, outcome, {target}):
            law = "lost reply" if target in self.finished[key] else "failure"
            self._find(law, key, f"to {target}, which lives, ended as {outcome or 'nothing'}")
        if not begun and not gave_up and not self._refuses(sent, target):
            self._find("lost message", key, f"was not begun by {target}, which lives")

    def _check_chosen(self, key: Key, sent: Sent, outcome: str, begun: set[str], *, cancelled: bool) -> None:
        if outcome.startswith("="):
            self._check_value(key, next(iter(begun), "nobody"), outcome)
        elif not (
            cancelled or (sent.limited and outcome in _GIVEN_UP) or self._excuses(sent, outcome, set(sent.targets))
        ):
            self._find("failure", key, f"to one of {sent.targets}, which live, ended as {outcome or 'nothing'}")

    def _check_value(self, key: Key, target: str, outcome: str) -> None:
        if outcome != f"={token(*key)}":
            self._find("wrong reply", key, f"to {target} was answered by {outcome[1:]}")
        elif target not in self.finished[key]:
            self._find("wrong reply", key, f"was answered, and {target} has not finished it")

    def _excuses(self, sent: Sent, outcome: str, targets: set[str]) -> bool:
        kind, _, cause = outcome.partition(":")
        if kind in _FAILED and sent.fails:
            return True
        return kind in _GONE and any(self._ends(sent, target, kind, cause) for target in targets)

    def _ends(self, sent: Sent, target: str, kind: str, cause: str) -> bool:
        """Whether *target* may have failed a message with that cause."""
        if target in self.gone:
            return True
        stops = self.stops.get(target, ())
        if kind == "PortClosed":
            return sent.after and bool(stops)
        # Endpoints that run beside others are cancelled when all that was queued is handled.
        may_end = self._refuses(sent, target) or sent.beside
        return may_end and kind == "ActorDied" and any(stop.reason in cause for stop in stops)

    def _refuses(self, sent: Sent, target: str) -> bool:
        """Whether *target* may have ended before it had begun a message."""
        stops = self.stops.get(target, ())
        return target in self.gone or any(stop.sender != sent.sender or stop.number < sent.number for stop in stops)
