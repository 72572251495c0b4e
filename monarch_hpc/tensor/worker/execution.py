"""Executes the records that are not plain operations: gradients, calls of functions, collectives, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from monarch_hpc.tensor.opaque.ref import OpaqueRef
from monarch_hpc.tensor.stream import records
from monarch_hpc.tensor.stream.records import (
    CallRequest,
    CollectiveSpec,
    CoordinateSpec,
    TransferSpec,
)
from monarch_hpc.tensor.worker import gradients
from monarch_hpc.tensor.worker.collectives.call_groups import CallGroups
from monarch_hpc.tensor.worker.collectives.groups import Groups
from monarch_hpc.tensor.worker.collectives.staging import device_of, to_device
from monarch_hpc.tensor.worker.healing.rank import RankHealing
from monarch_hpc.tensor.worker.healing.update import Update
from monarch_hpc.tensor.worker.programs import ReplayedProgram, ReplayReports, SteppedOptimizer, SteppedUpdate
from monarch_hpc.tensor.worker.queue import RankQueue
from monarch_hpc.tensor.worker.report import LoanFailed
from monarch_hpc.tensor.worker.requests import Requests
from monarch_hpc.tensor.worker.sharing.local import wait_for_worker
from monarch_hpc.tensor.worker.values import Dependent, Failure, Values

__all__ = ["Execution", "RecordStep"]


class RecordStep:
    """A record that is about to be executed.

    Attributes:
        size: number of its integers.
        run: executes it.
        results: numbers of the values that it makes.
        written: numbers of the values that it writes to, or, of a call that failed, has written to.
        num: number of sequence numbers that it takes.
    """

    __slots__ = ("name", "num", "results", "run", "size", "written")

    def __init__(
        self,
        name: str,
        size: int,
        run: Callable[[], None],
        results: Sequence[int] = (),
        written: Sequence[int] = (),
        num: int = 1,
    ) -> None:
        self.name = name
        self.size = size
        self.run = run
        self.results = results
        self.written = written
        self.num = num


class Execution:
    """The values and templates of one rank, and the meaning of each record.

    Args:
        rank: rank in the mesh of procs.
        values: its values.
        groups: the process groups of this rank.
        healing: what is done for commits, and in a heal.
        lend: takes a token and a copy of a value, for an actor of this proc; *is_loan*: a value, for a stream.
        queue: the order of what this rank does.
        run: executes records: the first one's sequence number, integers, and objects.
        reports: of what executes operations otherwise.

    Attributes:
        described: structures of results of calls, by number of the first result, until they are read.
        sharding: how operators run in the frame that is executed; None where each rank has values of its own.
    """

    def __init__(
        self,
        rank: int,
        values: Values,
        groups: Groups,
        healing: RankHealing,
        lend: Callable[..., None],
        queue: RankQueue,
        run: Callable[[int, list[int], Sequence[Any]], None],
        reports: ReplayReports,
    ) -> None:
        self.values = values
        self.templates: dict[int, Any] = {}
        self.described: dict[int, Any] = {}
        self.sharding: Any = None
        self._rank = rank
        self._groups = groups
        self._calls = CallGroups(rank, groups)
        self._requests = Requests()
        self._lend = lend
        self._queue = queue
        self._run = run
        self._reports = reports
        self._program: ReplayedProgram | None = None
        self.healing = healing
        self._kept: dict[int, tuple[torch.Tensor, int]] = {}  # copies within this rank, by tag

    def begin(self, a: list[int], i: int, seq: int, objects: Sequence[Any]) -> RecordStep:
        """Read the record at *i*."""
        values = self.values
        sharding, journal = self.sharding, self.healing.journal
        match a[i]:
            case records.FREE:
                end = i + 2 + a[i + 1]
                return RecordStep("free", end - i, partial(values.free, a[i + 2 : end]), num=0)
            case records.BACKWARD:
                leaves = a[i + 5 : i + 5 + a[i + 4]]
                run = partial(
                    gradients.backward, values, sharding, journal, a[i + 1], a[i + 2], bool(a[i + 3]), leaves, seq
                )
                return RecordStep("Tensor.backward", 5 + a[i + 4], run)
            case records.GET_GRAD:
                run = partial(gradients.get_grad, values, sharding, a[i + 1], a[i + 2])
                return RecordStep("Tensor.grad", 3, run, (a[i + 2],))
            case records.NO_GRAD:
                return RecordStep("Tensor.grad", 2, partial(gradients.set_grad, values, sharding, a[i + 1], 0))
            case records.SET_GRAD:
                run = partial(gradients.set_grad, values, sharding, a[i + 1], a[i + 2])
                return RecordStep("Tensor.grad", 3, run)
            case records.REQUIRE_GRAD:
                run = partial(gradients.require_grad, values, sharding, journal, a[i + 1], bool(a[i + 2]))
                return RecordStep("Tensor.requires_grad_", 3, run, written=(a[i + 1],))
            case records.SET_DATA:
                run = partial(gradients.set_data, values, *a[i + 1 : i + 4])
                return RecordStep("Tensor.data", 4, run, written=(a[i + 1],))
            case records.ALIAS:
                return RecordStep("slice_mesh", 3, partial(self._alias, a[i + 1], a[i + 2]), (a[i + 2],))
            case records.PUT:
                return RecordStep("put", 3, partial(self._put, a[i + 2], objects[a[i + 1]]), (a[i + 2],))
            case records.LEND:
                return RecordStep("send to an actor", 3, partial(self._lend_copy, a[i + 1], a[i + 2], seq))
            case records.LOAN:
                return RecordStep("lend", 3, partial(self._loan, a[i + 1], a[i + 2]))
            case records.TAKE:
                run, (out, own) = partial(self._take, *a[i + 1 : i + 4]), a[i + 3 : i + 5]
                return RecordStep("borrow", 5, run, (out,) if out else (), (own,) if own else ())
            case records.CALL:
                request: CallRequest = objects[a[i + 1]]
                first, refs = a[i + 2], a[i + 4 : i + 4 + a[i + 3]]
                results = range(first, first + (1 if request.num_outs < 0 else request.num_outs))
                written: list[int] = []
                run = partial(self._call, request, first, refs, written)
                return RecordStep(request.name, 4 + len(refs), run, results, written)
            case records.OPTIMIZER_STEP if self._program is not None:
                optimizer = self._program.optimizers[a[i + 1]]
                run = partial(self._step, self._program, optimizer, seq)
                return RecordStep("Optimizer.step", 2, run, written=optimizer.written)
            case records.UPDATE:
                num, end = 1 + a[i + 2], i + 5 + a[i + 1]
                update = partial(self._update, a[i + 5 : end], a[i + 3], a[i + 4], seq + 1, objects)
                return RecordStep("Optimizer.step", end - i, update, num=num)
            case records.COMMIT:
                return RecordStep("commit", 3, partial(self.healing.commit, a[i + 1], a[i + 2]))
            case number:
                return self._begin_spec(self.templates[number], a, i, seq)

    def _begin_spec(self, spec: Any, a: list[int], i: int, seq: int) -> RecordStep:
        match spec:
            case CoordinateSpec():
                run = partial(self._coordinate, spec, a[i + 1])
                return RecordStep("rank", 2, run, (a[i + 1],))
            case CollectiveSpec():
                size = 6 + a[i + 5]
                shape = (records.DTYPES[a[i + 4]], tuple(a[i + 6 : i + size]))
                run = partial(self._reduce, spec, a[i + 1], a[i + 2], bool(a[i + 3]), shape, seq)
                return RecordStep("reduce", size, run, (a[i + 2],) if a[i + 2] else (), (a[i + 1],) if a[i + 3] else ())
            case TransferSpec():
                size = 6 + a[i + 5]
                shape = (records.DTYPES[a[i + 4]], tuple(a[i + 6 : i + size]))
                run = partial(self._transfer, spec, a[i + 1], a[i + 2], a[i + 3], shape, seq)
                return RecordStep("to_mesh", size, run, (a[i + 2],) if a[i + 2] else ())
            case ReplayedProgram():
                size = 2 + spec.num_formals + spec.num_floats
                if not a[i + 1]:
                    return RecordStep("forget", size, partial(self.templates.pop, a[i]))
                run = partial(self._replay, spec, a[i + 1], a[i + 2 : i + size], seq)
                results = range(a[i + 1], a[i + 1] + spec.num_values)
                return RecordStep("captured step", size, run, results, num=spec.num_ops)
            case Exception():
                raise RuntimeError("a record of an operation that could not be loaded") from spec
            case _:
                raise RuntimeError(f"record {a[i]} is unknown")

    def _replay(self, program: ReplayedProgram, first: int, given: list[int], seq: int) -> None:
        """Execute the records of a captured step."""
        self._program = program
        try:
            ints = program.begin(first, given)
            if self.sharding is None or not program.lowers:
                self._run(seq, ints, program.objects)
            else:
                self._replay_sharded(program, first, given, seq, ints)
        finally:
            self._program = None

    def _replay_sharded(
        self, program: ReplayedProgram, first: int, given: list[int], seq: int, ints: list[int]
    ) -> None:
        # Not before there is a DTensor, which takes most of a second to load.
        from monarch_hpc.tensor.worker.lowered.recording import Replay
        from monarch_hpc.tensor.worker.lowered.replays import Replays

        if program.replays is None:
            program.replays = Replays(program, self.templates, self._size_of, self._reports)
        program.replays.run(Replay(first, given, seq, ints, program.objects, self.values, self.sharding, self._run))

    def _size_of(self, ints: list[int], at: int) -> tuple[int, int]:
        """The number of integers of a record of the captured step under way, and of its sequence numbers."""
        assert self._program is not None
        step = self.begin(ints, at, 0, self._program.objects)
        return step.size, step.num

    def _step(self, program: ReplayedProgram, optimizer: SteppedOptimizer, seq: int) -> None:
        """Take an optimizer's step in a captured step; commit it where there are versions."""
        values, sharding = self.values, self.sharding
        if sharding is None:
            optimizer.step(values, program.floats, None)
            return
        journal = self.healing.journal

        def take() -> None:
            journal.save(values.get(number) for number in optimizer.written)  # it may step their memory
            optimizer.step(values, program.floats, sharding)

        if program.commits:
            update = SteppedUpdate(optimizer, values, program.floats)
            self.healing.update(update, journal.version + 1, program.mark, sharding, take, seq)
        else:
            take()

    def _update(self, ints: list[int], version: int, mark: int, seq: int, objects: Sequence[Any]) -> None:
        """Execute and commit an optimizer's step; an empty one is committed by a later record."""
        if not ints:
            return
        update = Update(ints, self.templates, self.values)
        self.healing.update(update, version, mark, self.sharding, partial(self._run, seq, ints, objects), seq)

    # ---- values ----

    def _put(self, out: int, value: torch.Tensor) -> None:
        if self.sharding is not None:
            grads, value = value.requires_grad, self.sharding.wrap(value.detach())
            value.requires_grad_(grads)
        self.values[out] = value

    def _alias(self, value: int, out: int) -> None:
        self.values.check((value,))
        self.values[out] = self.values[value]

    def _lend_copy(self, number: int, token: int, seq: int) -> None:
        value = self.values.found(number)
        copied: Any = value if type(value) is Failure else Failure(seq)
        try:
            self._groups.drain()
            copied = value.detach().clone() if isinstance(value, torch.Tensor) else value
        finally:
            self._lend(token, copied)  # somebody waits for it

    def _loan(self, number: int, token: int) -> None:
        value = value.detach() if isinstance(value := self.values.found(number), torch.Tensor) else value
        self._lend(token, (value, self._queue.mark(value)), is_loan=True)

    def _take(self, key: int, token: int, out: int) -> None:
        key %= 1 << 64
        value, mark = wait_for_worker(key + self._groups.offset, self._groups.timeout_s, "a stream").loaned(token)
        if type(value) is Failure:
            raise LoanFailed(key, value.root)
        self._queue.follow(value, mark)
        if out:
            self.values[out] = value

    def _coordinate(self, spec: CoordinateSpec, out: int) -> None:
        self.values[out] = torch.tensor(spec.places[self._rank])

    def _call(self, request: CallRequest, first: int, refs: list[int], written: list[int]) -> None:
        self.values.check(refs)
        if request.grads:
            self.values.check_grads(refs, dropped=request.grads == "dropped")
        tensors = {number: value for number in refs if isinstance(value := self.values[number], torch.Tensor)}
        versions = list(map(_version_of, tensors.values()))
        try:
            self._call_function(request, first, refs)
            if versions != list(map(_version_of, tensors.values())):
                self.healing.journal.effects += 1
        except BaseException:
            changed = zip(tensors.items(), versions, strict=True)
            written += [number for (number, tensor), before in changed if tensor._version != before]
            raise

    def _call_function(self, request: CallRequest, first: int, refs: list[int]) -> None:
        values, call = self.values, self._requests.load(request)
        if self.sharding is not None and call.may_write:
            self.healing.journal.save_all(refs)
        args, kwargs = call.with_values(values, refs)
        torch._C._set_grad_enabled(request.grad)
        if call.is_plain:
            result = call.function(*args, **kwargs)
        else:
            with self._calls.entered((args, kwargs)) as (given, named):
                result = call.function(*given, **named)
        if request.num_outs == -2:
            values[first] = result
            return
        if result is None and not request.num_outs:
            return
        leaves, tree = tree_flatten(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, _KEPT)]
        if self.sharding is not None and not call.is_own:
            self.sharding.check_results([leaf for leaf in tensors if isinstance(leaf, torch.Tensor)])
        if request.num_outs >= 0 and len(tensors) != request.num_outs:
            raise RuntimeError(
                f"the function returned {len(tensors)} tensors, but its propagate= or an earlier call "
                f"with equal arguments promised {request.num_outs}"
            )
        values.update(enumerate(tensors, first))
        if request.num_outs == -1:
            marked = [_describe(leaf) if isinstance(leaf, _KEPT) else leaf for leaf in leaves]
            self.described[first] = tree_unflatten(marked, tree)

    # ---- between ranks ----

    def _given(self, number: int, like: torch.Tensor, seq: int) -> tuple[torch.Tensor | None, int, str]:
        """A value for others: the value or None, the root of its failure plus 1, and what is wrong with its shape."""
        value = self.values.found(number)
        if type(value) is Failure:
            return None, value.root + 1, ""
        if value.shape != like.shape or value.dtype != like.dtype:
            wrong = f"is {tuple(value.shape)} {value.dtype} on this rank, not {tuple(like.shape)} {like.dtype}"
            return None, seq + 1, wrong
        return value, 0, ""

    def _reduce(
        self, spec: CollectiveSpec, number: int, out: int, inplace: bool, shape: tuple[str, tuple[int, ...]], seq: int
    ) -> None:
        like = torch.empty(shape[1], dtype=getattr(torch, shape[0]))
        given, root, wrong = self._given(number, like, seq)
        torch._C._set_grad_enabled(False)
        result, highest = self._groups.reduce(spec, given, like, root)
        if wrong:
            raise RuntimeError(f"the tensor {wrong}")
        if highest:
            raise Dependent(highest - 1)
        if inplace:
            self.values[number].copy_(result)
        if out:
            self.values[out] = result

    def _transfer(
        self, spec: TransferSpec, number: int, out: int, tag: int, shape: tuple[str, tuple[int, ...]], seq: int
    ) -> None:
        like = torch.empty(shape[1], dtype=getattr(torch, shape[0]))
        ranks = tuple(sorted({rank for pair in spec.pairs for rank in pair}))
        if number:
            value, root, wrong = self._given(number, like, seq)
            sent = torch.zeros_like(like) if value is None else value.detach().contiguous().clone()
            targets = [target for source, target in spec.pairs if source == self._rank]
            others = [target for target in targets if target != self._rank]
            if self._rank in targets:
                self._kept[tag] = (sent.clone(), root)  # also if the others cannot be reached
            if others:
                self._groups.send(ranks, others, tag, sent, root)
            if wrong:
                raise RuntimeError(f"the tensor {wrong}")
            return
        source = next(source for source, target in spec.pairs if target == self._rank)
        if source == self._rank:
            value, root = self._kept.pop(tag)
        else:
            value, root = self._groups.receive(ranks, source, tag, like)
        if root:
            raise Dependent(root - 1)
        self.values[out] = to_device(value, device_of(spec.device))


_KEPT = (torch.Tensor, OpaqueRef)
_version_of = attrgetter("_version")  # an optimizer has each parameter of its model among its arguments


def _describe(tensor: torch.Tensor | OpaqueRef) -> tuple[str, Any]:
    if isinstance(tensor, OpaqueRef):
        return "object", None
    meta = (tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device), tensor.requires_grad)
    return "tensor", (*meta, tensor.is_leaf)
