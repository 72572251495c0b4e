"""One copy to many receivers, at its initiator: asks the receivers to pull, and tracks their progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from monarch_hpc.actor.messages.line import ProcLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import MemoryAccessError, TransportError
from monarch_hpc.rdma.buffer import RDMABuffer
from monarch_hpc.rdma.spread.course import PATIENCE_S, Course
from monarch_hpc.rdma.spread.tree import SOURCE, choose_chunk, choose_fan_out
from monarch_hpc.transport.memory.key import ID_BYTES
from monarch_hpc.transport.pulls.pull import REPORT_S, PullLink, send_to
from monarch_hpc.transport.pulls.requests import Beginning, PullStep, PullTarget, make_pull, number_of, trouble_of

__all__ = ["Copying"]


class Copying:
    """A copy of *source* to *targets*; on the driver, but for `open`.

    Args:
        source: its name in errors, and the memory.
        targets: the same of each receiver, by the index that errors give; all as large as the source.
        changed: called with this object after each event.
        report_s: time between two reports of a receiver.

    Attributes:
        refusals: why the copy cannot begin.
        ending: the receivers that may still write, after `end`.
        num_unexplained: the lost processes whose causes are still to come.
    """

    def __init__(
        self,
        runtime: Runtime,
        source: tuple[str, RDMABuffer],
        targets: Mapping[int, tuple[str, RDMABuffer]],
        changed: Callable[[Copying], None],
        report_s: float,
    ) -> None:
        self._runtime = runtime
        self._pulls = runtime.node.own_memory.pulls
        self._id = os.urandom(ID_BYTES)
        self._places = {SOURCE: source[1].place, **{index: target.place for index, (_, target) in targets.items()}}
        members = {SOURCE: source, **targets}
        self._names = {
            index: f"{name}, memory of {buffer.owner} on {self._places[index][0].host}"
            for index, (name, buffer) in members.items()
        }
        self._num_bytes = source[1].size()
        hosts = {index: self._places[index][0].host for index in targets}
        num_hosts = len(set(hosts.values()) | {source[1].place[0].host}) - 1
        self._chunk_bytes = choose_chunk(self._num_bytes, num_hosts)
        self._patience_s = PATIENCE_S / REPORT_S * report_s
        fan_out = choose_fan_out(-(-self._num_bytes // self._chunk_bytes), num_hosts)
        self.course = Course(hosts, source[1].place[0].host, self._num_bytes, fan_out, self._patience_s)
        self._changed = changed
        self._report_s = report_s
        self._links: dict[int, PullLink] = {}
        self._errors: dict[int, BaseException] = {}
        self._gone: set[int] = set()
        self._source_known = False
        self._source_why = ""
        self._began = False
        self._orders_due = False
        self._opened_s = self._now_s()
        self.refusals: dict[int, MemoryAccessError] = {}
        self.ending: set[int] = set()
        self.num_unexplained = 0

    @property
    def opening(self) -> bool:
        """Whether an answer is still outstanding and may come soon."""
        patient = self._now_s() - self._opened_s < self._patience_s
        waits_for_source = patient and not self._source_known
        return waits_for_source or self.course.opening

    def name(self, index: int) -> str:
        """A receiver in words, or the source."""
        return self._names[index]

    def _now_s(self) -> float:
        return self._runtime.engine.clock()

    # ---- the beginning ----

    def open(self) -> None:
        """Ask the receivers to prepare; from any thread."""
        self._pulls.wanted[self._id] = self
        self.course.start(self._now_s())
        call_soon = self._runtime.engine.call_soon
        for index, (proc, _identifier, _offset) in self._places.items():

            def reached(link: ProcLink | TransportError, index: int = index, proc: ProcRef = proc) -> None:
                call_soon(partial(self._reached, index, proc, link))

            self._runtime.connections.reach(proc, reached)

    def _reached(self, index: int, proc: ProcRef, link: ProcLink | TransportError) -> None:
        if self._id not in self._pulls.wanted:
            return
        if isinstance(link, TransportError):
            self._on_gone(index, link)
        else:
            own = proc.incarnation == self._runtime.own.incarnation
            self._links[index] = self._pulls.own if own else cast(PullLink, link)
            if index == SOURCE:
                link.memory.open(self._places[SOURCE][1], self._on_source)
                return
            (_, identifier, offset), (_, source, source_offset) = self._places[index], self._places[SOURCE]
            sizes = self._num_bytes, self._chunk_bytes
            opening = PullTarget(identifier, offset, *sizes, source, source_offset, self._report_s)
            self._send(index, PullStep.OPEN, opening.pack())
        self._note()

    def _on_source(self, answer: bytes | TransportError) -> None:
        if isinstance(answer, MemoryAccessError):
            self.refusals[SOURCE] = MemoryAccessError(self.name(SOURCE), answer.problem)
        self._source_known = True
        self._note()

    def _send(self, index: int, step: PullStep, rest: bytes = b"") -> None:
        send_to(self._links[index], make_pull(step, index, self._id, rest))

    def begin(self) -> None:
        """Let the receivers begin, as all who could answer have."""
        self._began = True
        self.course.begin()
        self._give_orders()

    def _give_orders(self) -> None:
        self._orders_due = False
        for child, parent in self.course.take_orders().items():
            proc, identifier, offset = self._places[parent]
            whole = parent == SOURCE or self.course.is_whole(parent)
            where = Beginning(parent, proc.incarnation, identifier, offset, whole, proc.allocation, proc.addresses)
            self._send(child, PullStep.BEGIN, where.pack())
        self._changed(self)  # some may have failed

    def _note(self) -> None:
        """Report an event, and plan once for all that come in this round of the engine."""
        if self._began and not self._orders_due:
            self._orders_due = True
            self._runtime.engine.call_soon(self._give_orders)
        self._changed(self)

    # ---- events ----

    def on_pull(self, number: int, step: PullStep, rest: bytes) -> None:
        """See `transport.pulls.pulls.Wanting`."""
        if number not in self._links or number == SOURCE:
            return
        course, now_s = self.course, self._now_s()
        match step:
            case PullStep.READY:
                course.ready(number, now_s)
            case PullStep.REPORT:
                course.report(number, number_of(rest), now_s)
            case PullStep.STUCK:
                parent, refused, why = trouble_of(rest)
                if refused and parent == SOURCE:
                    self._errors.setdefault(SOURCE, MemoryAccessError(self.name(SOURCE), why))
                    self._on_source_gone(why)
                else:
                    course.stuck(number, parent, why, now_s)
            case PullStep.ENDED:
                self.ending.discard(number)
            case _:
                self._on_refused(number, rest.decode(errors="replace"))
        self._note()

    def _on_refused(self, index: int, why: str) -> None:
        error = MemoryAccessError(self.name(index), why)
        if self._began:
            self._errors.setdefault(index, error)
            self.course.lost(index, why)
        else:
            self.refusals[index] = error
            self.course.refused(index)

    def on_lost(self, link: PullLink, error: TransportError) -> None:
        """See `transport.pulls.pulls.Wanting`."""
        lost = [index for index, known in self._links.items() if known is link]
        for index in lost:
            self._on_gone(index, error)
        if lost:
            self._note()

    def _on_gone(self, index: int, error: TransportError) -> None:
        self._gone.add(index)
        self.ending.discard(index)
        if index in self.course.failed:
            return
        self._explain(index, error)
        if index == SOURCE:
            self._source_known = True
            self._on_source_gone(str(error))
        else:
            self.course.lost(index, str(error))

    def _on_source_gone(self, why: str) -> None:
        self._source_why = self._source_why or why
        self.course.source_lost(why)

    def _explain(self, index: int, error: TransportError) -> None:
        self.num_unexplained += 1
        self._errors.setdefault(index, error)

        def on_cause(cause: BaseException) -> None:
            self.num_unexplained -= 1
            self._errors[index] = cause
            self._note()

        self._runtime.causes.explain(self._places[index][0].incarnation, self.name(index), error, on_cause)

    def look(self) -> None:
        """Note who is silent; call it as often as receivers report."""
        self.course.look(self._now_s())
        self._note()

    # ---- the end ----

    def end(self) -> None:
        """Let all receivers stop; each leaves `ending` once it writes no more."""
        self.ending = self._links.keys() - self._gone - {SOURCE}
        for index in list(self.ending):
            self._send(index, PullStep.END)

    def close(self) -> None:
        """Hear no more of the receivers."""
        self._pulls.wanted.pop(self._id, None)

    def errors(self, limit_s: float | None) -> dict[int, BaseException]:
        """Why receivers have not all bytes, by index; *limit_s* was the time limit of those that were too slow."""
        late = "given up" if limit_s is None else f"not done after {limit_s:g} s"
        errors: dict[int, BaseException] = {
            index: TimeoutError(f"{late}: {self.name(index)}{self._state(index)}") for index in self.course.left
        }
        for index, why in self.course.failed.items():
            known = self._errors.get(index) or (self._errors.get(SOURCE) if why == self._source_why else None)
            errors[index] = known or MemoryAccessError(self.name(index), why)
        return errors

    def _state(self, index: int) -> str:
        if index not in self._links:
            return ", not reached yet"
        return ", which has not answered lately" if self.course.is_silent(index) else ""
