"""The worker of mesh tensors on one rank: executes frames of records in the order issued, and answers reads."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from socket import gethostname
from threading import get_ident
from typing import Any

import torch

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.metrics import own_recorder
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.process.native_threads import thread_frames
from monarch_hpc.core.text.description import class_name, text_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.tensor.stream.copies import Copied, copy_value
from monarch_hpc.tensor.stream.holdings import LateFrame, Rejoining, Reply, Restoring, WorkerPlace
from monarch_hpc.tensor.stream.records import (
    FIRST_TEMPLATE,
    HALTED,
    CollectiveSpec,
    CoordinateSpec,
    MeshSpec,
    OpSpec,
    ProgramSpec,
    TransferSpec,
)
from monarch_hpc.tensor.worker.collectives.groups import Groups
from monarch_hpc.tensor.worker.collectives.staging import device_of
from monarch_hpc.tensor.worker.control import TensorControl
from monarch_hpc.tensor.worker.divergence import Divergence, FailedFrame
from monarch_hpc.tensor.worker.execution import Execution
from monarch_hpc.tensor.worker.healing.rank import RankHealing
from monarch_hpc.tensor.worker.programs import ReplayedProgram, ReplayReports
from monarch_hpc.tensor.worker.progress import FrameLines, OpProgress
from monarch_hpc.tensor.worker.queue import RankQueue
from monarch_hpc.tensor.worker.report import OpFailure, pack_failure
from monarch_hpc.tensor.worker.sharing.lent import LentValues
from monarch_hpc.tensor.worker.sharing.local import add_worker, reopen_worker, tell_stopped
from monarch_hpc.tensor.worker.template import Template
from monarch_hpc.tensor.worker.values import Dependent, Failure, Values

__all__ = ["TensorWorker", "WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Constant properties of the workers of an engine.

    Attributes:
        key: identifies the engine.
        ranks: ranks in the mesh of procs, in the order of the workers.
        addresses: IP addresses by rank.
        collective_s: see the config key.
        max_lent: see the config key.
        is_stream: whether they are of a stream beside others.
    """

    key: int
    ranks: tuple[int, ...]
    addresses: dict[int, str]
    collective_s: float
    max_lent: int
    is_stream: bool = False


class TensorWorker(Actor):
    """Holds the values of one rank.

    Args:
        settings: the same on all ranks.
        control: the control actors of all ranks.
    """

    def __init__(self, settings: WorkerSettings, control: ActorMesh[TensorControl]) -> None:
        place = context().spawn_rank.rank
        places = {rank: place for place, rank in enumerate(settings.ranks)}
        rank = settings.ranks[place]
        groups = Groups(rank, settings.addresses, control, places, settings.collective_s)
        self._prepare(settings, rank, groups, OpProgress(own_recorder(), context().mark))

    def _prepare(self, settings: WorkerSettings, rank: int, groups: Groups, progress: OpProgress) -> None:
        self._progress = progress
        self._rank = rank
        self._groups = groups
        self._values = Values()
        self._healing = RankHealing(self._rank, self._values, self._groups, settings.ranks)
        self._queue = RankQueue(is_own=settings.is_stream)
        self._lent = LentValues(rank, settings.max_lent)
        self.borrowed, self.loaned = self._lent.borrowed, self._lent.loaned
        lend = self._lent.lend
        reports = ReplayReports(self._begin, self._fail, lambda: bool(self._healing.cause))
        self._execution = Execution(rank, self._values, groups, self._healing, lend, self._queue, self._run, reports)
        self._templates = self._execution.templates
        self._shardings: dict[int, Any] = {}
        self._failures: list[OpFailure] = []
        self._effects: list[int] = []
        self._key = settings.key + groups.offset
        self._seq, self._next_seq = -1, 0
        self._thread = 0
        self._divergence = Divergence(lambda: self._failures, lambda: self._seq, groups.is_over, self.abort)
        self.note_failed = self._divergence.note
        add_worker(self._key, self)

    # ---- the op stream ----

    @endpoint
    def run(
        self,
        base: int,
        specs: Sequence[tuple[int, Any]],
        objects: Sequence[Any],
        data: bytes,
        mesh: int,
        epoch: int,
        lines: FrameLines,
        reader: int,
        numbers: tuple[int, ...],
    ) -> tuple[tuple[OpFailure, ...], Reply | None]:
        """Execute a frame; return the operations that failed, without those that only depend on them, and copies.

        Args:
            base: sequence number of the first operation.
            specs: templates that the frame uses first, with their numbers.
            objects: what records refer to by number.
            data: the records. The program makes no malformed ones: they end the frame, and so the mesh.
            mesh: number of the `MeshSpec` whose sharded tensors the frame is about; 0 if it is about values that
                each rank has of its own.
            epoch: number of the attempt to have a mesh; frames of earlier ones are not executed.
            lines: the lines that issued its operations.
            reader: the rank that returns copies of values afterwards; -1 if there is none.
            numbers: the values.
        """
        self._define_all(specs)
        self._progress.begin(base, lines)
        try:
            failed = self._run_frame(base, objects, data, mesh, epoch)
        finally:
            self._progress.end()
        return failed, self._copies(numbers) if reader == self._rank else None

    def _run_frame(
        self, base: int, objects: Sequence[Any], data: bytes, mesh: int, epoch: int
    ) -> tuple[OpFailure, ...]:
        if self._healing.cause or epoch < self._healing.epoch:
            return (self._halted(),)
        record = memoryview(data).cast("q").tolist()
        self._thread = get_ident()
        self._failures = []
        if mesh:
            sharding = self._sharding_of(mesh)
            self._execution.sharding = sharding
            self._divergence.begin(base)
            try:
                with sharding.entered():
                    self._run(base, record, objects)
            finally:
                self._execution.sharding = None
                self._divergence.end(base)
            if self._failures and not self._healing.cause:
                told = FailedFrame.of(self._rank, epoch, base, self._failures)
                self._groups.tell_failed(self._templates[mesh].ranks, told)
        else:
            with self._queue.entered():
                self._run(base, record, objects)
        self._thread = 0
        return (*self._failures, self._halted()) if self._healing.cause else tuple(self._failures)

    def _halted(self) -> OpFailure:
        return HALTED, "", "", self._healing.cause, "", b""

    def _define_all(self, specs: Sequence[tuple[int, Any]]) -> None:
        for number, spec in specs:
            self._define(number, spec)

    def _sharding_of(self, mesh: int) -> Any:
        """How operators run on the tensors of a mesh; joins its process groups at the first use."""
        found = self._shardings.get(mesh)
        if found is None:
            # Not before it is needed: DTensor takes most of a second to load.
            from monarch_hpc.tensor.worker.sharded.sharding import Sharding

            spec = self._templates[mesh]
            found = self._shardings[mesh] = Sharding(spec, self._rank, self._groups)
            self._healing.add(mesh, found)
        return found

    def _define(self, number: int, spec: Any) -> None:
        try:
            match spec:
                case OpSpec():
                    self._templates[number] = Template(spec)
                case ProgramSpec():
                    self._templates[number] = ReplayedProgram(spec)
                case CollectiveSpec() | CoordinateSpec() | MeshSpec() | TransferSpec():
                    self._templates[number] = spec
        except Exception as error:  # noqa: BLE001 this torch has no such function, or user code cannot be loaded
            self._templates[number] = error

    def _run(self, seq: int, a: list[int], objects: Sequence[Any]) -> None:
        values, templates, execution, note = self._values, self._templates, self._execution, self._progress.note
        i, end = 0, len(a)
        grad = torch.is_grad_enabled()
        counter = None if execution.sharding is None else execution.sharding.counter
        while i < end:
            number = a[i]
            self._seq = seq
            if counter is not None:
                counter.seq = seq
            if number >= FIRST_TEMPLATE and type(template := templates[number]) is Template:
                if template.grad is not grad:
                    grad = template.grad
                    torch._C._set_grad_enabled(grad)
                try:
                    if values.num_failed:
                        values.check([a[i + place] for place in template.refs])
                    note(seq, template.name)
                    template.run(values, a, i)
                except BaseException as error:  # noqa: BLE001 user code, and torch's errors of any class
                    first = a[i + template.size - 1]
                    results = range(first, first + template.num_outs)
                    self._fail(seq, error, template.name, results, [a[i + place] for place in template.mutated])
                    if self._healing.cause:
                        break
                i += template.size
                seq += 1
                continue
            step = execution.begin(a, i, seq, objects)
            if step.size < 2 or i + step.size > end:
                raise ValueError(f"record {number} at {i} of {end} integers is malformed")
            try:
                if step.num:
                    note(seq, step.name)
                step.run()
            except BaseException as error:  # noqa: BLE001 user code, and torch's errors of any class
                self._fail(seq, error, step.name, step.results, step.written)
            if self._healing.cause:  # of an operation of a captured step, maybe
                break
            grad = torch.is_grad_enabled()
            i += step.size
            seq += step.num
        self._next_seq = seq
        torch._C._set_grad_enabled(True)

    def _begin(self, seq: int, name: str) -> None:
        self._seq = seq
        self._progress.note(seq, name)

    def _fail(self, seq: int, error: BaseException, name: str, results: Any, written: Sequence[int]) -> None:
        if isinstance(error, Dependent):
            root = error.root
        else:
            root = seq
            if self._execution.sharding is not None and self._healing.note_failure(seq, error):
                tell_stopped(self._key, self._healing.epoch, self._healing.cause)
                return
            self._failures.append(pack_failure(seq, name, error))
        if not results and not written:
            self._effects.append(root)
        self._values.fail(root, results, written)

    # ---- reads ----

    @endpoint
    def read(self, numbers: tuple[int, ...]) -> Reply:
        """Return copies of values."""
        return self._copies(numbers)

    def _copies(self, numbers: tuple[int, ...]) -> Reply:
        if self._healing.cause:
            return self._reply("halted", None)
        found: list[Copied] = []
        for number in numbers:
            value = self._values.found(number)
            if type(value) is Failure:
                return self._reply("failed", value.root)
            try:
                self._groups.drain()
                with self._queue.entered():
                    found.append(copy_value(value))
            except Exception as error:  # noqa: BLE001 no memory for the copy, or the value's own was released
                return self._reply("refused", (self._rank, pack_failure(self._seq, "a copy", error)))
        return self._reply("value", tuple(found))

    def _reply(self, kind: str, value: Any) -> Reply:
        effects, self._effects = tuple(self._effects), []
        journal, cause = self._healing.journal, self._healing.cause
        if cause:
            kind, value = "halted", cause
        return kind, value, effects, journal.version, journal.effects

    @endpoint
    def describe(self, first: int) -> Reply:
        """Return the structure of the result of the call whose first result has this number."""
        described = self._execution.described
        if first not in described:
            value = self._values.get(first)
            return self._reply("failed", value.root if type(value) is Failure else -1)
        return self._reply("value", described.pop(first))  # None if the function returns nothing

    @endpoint
    def lowering(self, template: int) -> str:
        """Return why a captured step is replayed as recorded; empty if it runs below DTensor."""
        program = self._templates.get(template)
        return program.lowering() if type(program) is ReplayedProgram else "it was not replayed yet"

    @endpoint
    def device(self, kind: str) -> str:
        """Return why this rank has no device of a type; empty if it has one."""
        try:
            device_of(kind)
        except Exception as error:  # noqa: BLE001 torch's errors of any class, such as of a driver
            return f"rank {self._rank} on host {gethostname()}: {text_of(error)}"
        return ""

    # ---- healing ----

    @endpoint
    def heal(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of `RankHealing`, in turn with frames."""
        return getattr(self._healing, method)(*arguments, **options)

    @endpoint
    def restore(self, order: Restoring) -> dict[int, bytes]:
        """Meet the other ranks again, and go on with what *order* says; captured steps are forgotten.

        Returns:
            Digests of this rank's parts of all values, by number.
        """
        self._meet(order)
        for mesh in order.meshes:  # in the same order on all ranks: each waits for the others of its groups
            if self._rank not in self._templates[mesh].ranks:
                continue
            if mesh in self._shardings:
                self._shardings[mesh].rejoin(self._templates[mesh])
            else:
                self._sharding_of(mesh)
        self._effects = []
        return self._healing.restore(order)

    @endpoint
    def finish(self, specs: list[tuple[int, Any]], frames: list[LateFrame]) -> list[OpFailure]:
        """Execute frames that may not have come here, but those that were executed; return what failed."""
        self._define_all([(number, spec) for number, spec in specs if number not in self._templates])
        failed: list[OpFailure] = []
        for ranks, base, num, objects, data in frames:
            if self._rank in ranks and (not num or base + num > self._next_seq):
                failed += self._run_frame(base, objects, data, 0, self._healing.epoch)
        return failed

    @endpoint
    def rejoin(self, order: Rejoining) -> None:
        """Meet the other ranks again, and go on with the values that each has; captured steps are forgotten."""
        self._meet(order)
        self._healing.go_on(order)

    def _meet(self, order: Restoring | Rejoining) -> None:
        for number in [number for number, one in self._templates.items() if type(one) is ReplayedProgram]:
            del self._templates[number]
        self._define_all(order.specs)
        self._lent.reopen()
        reopen_worker(self._key)
        self._healing.meet(order)

    # ---- ends ----

    def abort(self, cause: str, epoch: int | None = None) -> None:
        """End the collectives of an epoch, or of this one, if there is no later one; from any thread."""
        if not self._groups.abort(cause, epoch):
            return
        self._lent.end(cause)

    def place(self) -> WorkerPlace:
        """The operation under way, and the stack; from any thread."""
        frame = thread_frames().get(self._thread)
        return WorkerPlace(self._seq, "" if frame is None else "".join(traceback.format_stack(frame)))

    def __cleanup__(self, error: BaseException | None) -> None:
        cause = "its worker has ended" if error is None else f"{class_name(error)}: {text_of(error)}"
        self.abort(cause)
        self._groups.close(cause)
