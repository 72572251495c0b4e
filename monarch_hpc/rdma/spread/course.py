"""The course of one copy to many receivers: what is known of each, and from whom each is to pull next. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.rdma.spread.tree import SOURCE, plan_parents

__all__ = ["PATIENCE_S", "Course"]

PATIENCE_S = 2.0
"""Time without a word from a receiver after which others pull from elsewhere: eight reports. It is not left out: it may
hold its interpreter's lock, and goes on where it is once it can."""


class Course:
    """A copy from one source to receivers, which are known by their indices.

    Args:
        hosts: the host of each receiver.
        num_bytes: size of the copy.
        patience_s: time without a word from a receiver after which others pull from elsewhere.

    Attributes:
        failed: why receivers will never have all bytes, by index.
    """

    def __init__(
        self,
        hosts: Mapping[int, str],
        source_host: str,
        num_bytes: int,
        fan_out: int = 1,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.failed: dict[int, str] = {}
        self._hosts = dict(hosts)
        self._source_host = source_host
        self._num_bytes = num_bytes
        self._fan_out = fan_out
        self._patience_s = patience_s
        self._changed = False  # since the last orders
        self._root = SOURCE  # who has all bytes, and is the first to be pulled from
        self._source_lost = ""
        self._arrived = dict.fromkeys(hosts, 0)
        self._unfinished = set(hosts)
        self._unanswered = set(hosts)
        self._ready: set[int] = set()
        self._silent: set[int] = set()
        self._heard_s = dict.fromkeys(hosts, 0.0)
        self._looked_s = 0.0
        self._broken: dict[tuple[int, int], str] = {}  # why a receiver cannot pull from another
        self._parents: dict[int, int] = {}  # the last orders
        self._stranded: list[int] = []  # receivers that currently reach no source
        self._last_moving_s = 0.0  # when not all of those who are left were stranded
        self._begun = False

    @property
    def left(self) -> list[int]:
        """The receivers that are still to get bytes."""
        return [each for each in self._hosts if each in self._unfinished]

    @property
    def over(self) -> bool:
        """Whether none is left."""
        return not self._unfinished

    def is_whole(self, receiver: int) -> bool:
        """Whether a receiver has all bytes."""
        return self._arrived[receiver] >= self._num_bytes

    def is_silent(self, receiver: int) -> bool:
        """Whether a receiver was silent for too long at some time."""
        return receiver in self._silent

    @property
    def opening(self) -> bool:
        """Whether a receiver has not answered yet, of whom it is not known that it cannot."""
        return bool(self._unanswered)

    # ---- events ----

    def start(self, now_s: float) -> None:
        """All are asked to prepare."""
        self._looked_s = now_s
        self._heard_s = dict.fromkeys(self._hosts, now_s)

    def ready(self, receiver: int, now_s: float) -> None:
        """A receiver is prepared."""
        self._hear(receiver, now_s)
        self._ready.add(receiver)
        self._unanswered.discard(receiver)
        self._changed = True

    def refused(self, receiver: int) -> None:
        """A receiver has answered that it cannot take part."""
        self._unanswered.discard(receiver)

    def begin(self) -> None:
        """Let prepared receivers begin, and the others when they are prepared."""
        self._begun = True
        self._changed = True

    def report(self, receiver: int, num_bytes: int, now_s: float) -> None:
        """A receiver has so many bytes."""
        self._hear(receiver, now_s)
        self._arrived[receiver] = max(self._arrived[receiver], num_bytes)
        if self.is_whole(receiver):
            self._unfinished.discard(receiver)
        # Those who are stranded may pull from it.
        self._changed |= bool(self._stranded) and self.is_whole(receiver)

    def stuck(self, receiver: int, parent: int, why: str, now_s: float) -> None:
        """A receiver cannot pull from *parent*, of whom nothing else is known."""
        self._hear(receiver, now_s)
        if self._parents.get(receiver) != parent:
            return  # it has been told of another one meanwhile
        self._broken[receiver, parent] = why
        del self._parents[receiver]
        self._changed = True

    def lost(self, receiver: int, why: str) -> None:
        """A receiver is gone, or will take no more bytes."""
        self._fail(receiver, why)
        self._parents.pop(receiver, None)
        self._changed = True

    def source_lost(self, why: str) -> None:
        """The source is gone; those that have all bytes may still serve the others."""
        self._source_lost = self._source_lost or why
        self._changed = True

    def look(self, now_s: float) -> None:
        """Note the receivers that have been silent for too long; call it a few times within the patience."""
        if now_s - self._looked_s > self._patience_s / 2:  # this process itself did not run
            self._heard_s = dict.fromkeys(self._hosts, now_s)
        self._looked_s = now_s
        self._fail_stranded(now_s)
        if not self._begun and now_s - max(self._heard_s.values()) < self._patience_s:
            return  # the answers are still coming in
        silent = {each for each, heard_s in self._heard_s.items() if now_s - heard_s > self._patience_s}
        if silent <= self._silent:
            return
        # For good: a source that was too slow once is not pulled from again, lest the tree change back and forth.
        self._silent |= silent
        self._unanswered -= silent
        self._changed = True

    def _fail_stranded(self, now_s: float) -> None:
        """Fail receivers that reach no source, if no other can appear: not at once, as deaths become known later."""
        if not self._stranded or len(self._stranded) < len(self._unfinished):
            self._last_moving_s = now_s
        elif now_s - self._last_moving_s > self._patience_s:
            for each in self._stranded:
                self._fail(each, next(why for (child, _), why in self._broken.items() if child == each))

    def _fail(self, receiver: int, why: str) -> None:
        self.failed.setdefault(receiver, why)
        self._unfinished.discard(receiver)
        self._unanswered.discard(receiver)

    def _hear(self, receiver: int, now_s: float) -> None:
        self._heard_s[receiver] = now_s

    # ---- orders ----

    def take_orders(self) -> dict[int, int]:
        """The orders that follow from what has happened: from whom receivers are to pull from here on.

        Planning takes a step for each receiver, so it is better done once for several events.
        """
        if not (self._begun and self._changed):
            return {}
        self._changed = False
        planned = self._plan()
        orders = {
            each: parent
            for each, parent in planned.items()
            if each in self._ready and not self.is_whole(each) and self._parents.get(each) != parent
        }
        self._parents.update(orders)
        return orders

    def _plan(self) -> dict[int, int]:
        members = [each for each in self._hosts if each not in self.failed]
        serving = [each for each in members if each in self._ready and each not in self._silent]
        if self._source_lost:
            root = next((each for each in [self._root, *serving] if each in serving and self.is_whole(each)), None)
            if root is None:
                for each in self.left:
                    self._fail(each, self._source_lost)
                return {}
            self._root = root
        hosts = {**self._hosts, SOURCE: self._source_host}
        others = [each for each in members if each != self._root]
        leaves = {each for each in others if each not in serving}
        self._stranded = []
        while True:
            parents = plan_parents(hosts, hosts[self._root], others, leaves, self._fan_out)
            parents = {each: self._root if parent == SOURCE else parent for each, parent in parents.items()}
            apart = self._mend(parents, [each for each in others if each not in leaves])
            if apart is None:
                break
            leaves.add(apart)  # no receiver may wait for it; then it may pull from those that did
        return {each: parent for each, parent in parents.items() if each not in self._stranded}

    def _mend(self, parents: dict[int, int], serving: list[int]) -> int | None:
        """Give others to those who cannot pull from their parents; return one whom that leaves without any."""
        self._stranded = []
        for each, parent in list(parents.items()):
            if (each, parent) not in self._broken or self.is_whole(each):
                continue
            found = self._elsewhere(each, parents, serving)
            if found is not None:
                parents[each] = found
            elif each in serving:
                return each
            else:
                self._stranded.append(each)
        return None

    def _elsewhere(self, child: int, parents: Mapping[int, int], serving: list[int]) -> int | None:
        """The sources of *child*, its ancestors first; none that pulls from *child*."""
        ancestors = []
        above = parents[child]
        while above != self._root:
            above = parents[above]
            ancestors.append(above)
        for each in [*ancestors, *serving]:
            if each == child or (child, each) in self._broken:
                continue
            above = each
            while above not in (child, self._root):
                above = parents[above]
            if above != child:
                return each
        return None
