"""The steps of a heal on one rank: it says where it stands, goes to a version, joins others, gives or takes state."""

from __future__ import annotations

import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from monarch_hpc.core.errors import MonarchError
from monarch_hpc.tensor.stream.holdings import Held, RankStatus, Rejoining, Restoring
from monarch_hpc.tensor.worker.collectives.groups import Groups
from monarch_hpc.tensor.worker.collectives.staging import to_device, to_host
from monarch_hpc.tensor.worker.healing.journal import LOST, Journal, small_sums
from monarch_hpc.tensor.worker.healing.update import AnyUpdate, LocalUpdates
from monarch_hpc.tensor.worker.values import Failure, Values

__all__ = ["Halted", "RankHealing"]

_LIBRARIES = ("gloo", "NCCL")
"""Names in the errors of collectives."""


class Halted(Exception):
    """This rank executes nothing more until a heal: the others may have left it, or it does not know of a commit."""


class RankHealing:
    """The state of one rank with respect to the others.

    Args:
        rank: this rank.
        values: its values.
        groups: its process groups.
        world: all ranks of the engine.

    Attributes:
        journal: the undo log.
        cause: why this rank executes nothing; empty if it does.
        epoch: number of attempts to have a mesh.
    """

    def __init__(self, rank: int, values: Values, groups: Groups, world: tuple[int, ...]) -> None:
        self._rank = rank
        self._values = values
        self._groups = groups
        self._world = world
        self._shardings: dict[int, Any] = {}
        self._updates = LocalUpdates()
        self.journal = Journal(values)
        self.cause = ""
        self.epoch = 0

    def add(self, number: int, sharding: Any) -> None:
        """Include the sharded tensors of a mesh."""
        self._shardings[number] = sharding
        self.journal.add_random(sharding.ops)
        sharding.ops.journal = self.journal

    def note_failure(self, seq: int, error: BaseException) -> bool:
        """Handle a failed operation on sharded tensors; return whether this rank stops, as others may wait for it."""
        if isinstance(error, Halted):
            self.cause = str(error)
        elif self._is_missed(error):
            self.cause = self._groups.cause or f"a collective failed: {error}"
        else:
            self.journal.failed = (self.journal.failed * 31 + seq + 1) % (1 << 61)
        if self.cause and not self._groups.cause:
            self._groups.abort(self.cause)  # others may wait for this rank in their next collective
        return bool(self.cause)

    def _is_missed(self, error: BaseException) -> bool:
        """Whether an operation failed because of other ranks."""
        named = any(library in str(error) for library in _LIBRARIES)
        return bool(self._groups.cause) or named or isinstance(error, MonarchError)

    def commit(self, version: int, mark: int) -> None:
        """Take part in a commit: none is done unless all ranks have executed all that was issued before.

        Args:
            version: its number.
            mark: number of the next value.

        Raises:
            Halted: it is unknown here whether it is done; or ranks have failed in different operations.
        """
        self._meet(version, mark)
        self.journal.pass_on()

    def _meet(self, version: int, mark: int, update: Callable[[], None] | None = None, *, ready: bool = True) -> bool:
        """Pass the barrier of a commit; return whether all ranks were *ready*: else the commit is not done.

        Args:
            version: see `commit`.
            mark: see `commit`.
            update: what is executed when the commit is done.
            ready: whether this rank can do so without others.
        """
        journal = self.journal
        try:
            if len(self._world) > 1:
                for tensor in small_sums(self._values, journal.mark):
                    with torch.no_grad():
                        tensor._settled = tensor._version, tensor.detach().full_tensor()
            self._groups.drain()
            if ready:
                journal.prepare(version, mark, update)
            (low, high), (all_ready, _) = self._groups.agree(self._world, journal.failed, int(ready))
            if low != high:
                journal.withdraw()
                raise Halted("the operations that failed on it are not those that failed on other ranks")
            if not all_ready:
                journal.withdraw()
        except Halted:
            raise
        except Exception as error:
            raise Halted(f"commit {version} was not seen to end: {error}") from error
        return bool(all_ready)

    def update(
        self, update: AnyUpdate, version: int, mark: int, sharding: Any, run: Callable[[], None], seq: int
    ) -> None:
        """Take an optimizer's step, and part in its commit: before it, if no rank needs another one for it.

        Args:
            update: the step.
            version: number of the commit.
            mark: number of the next value.
            sharding: of the tensors.
            run: executes it with copies of what it overwrites; operations that fail are noted, or raised.
            seq: sequence number of its first operation.

        Raises:
            Halted: see `commit`.
        """
        is_local = update.operations is not None and self._settle(update, sharding)
        ready = is_local and self._updates.has(update, self._values)
        own = partial(update.apply, sharding)
        if self._meet(version, mark, partial(self._apply_entered, own, sharding), ready=ready):
            self._apply(own)
            self.journal.pass_on()
            return
        failed: Exception | None = None
        with self._updates.learning(update if is_local else None, lambda: self._num_failures(failed)):
            try:
                run()
            except Exception as error:  # of an optimizer, of any class
                if self.note_failure(seq, error):
                    raise
                failed = error
        if not self.cause:
            self.commit(version, mark)
        if failed is not None:
            raise failed

    def _num_failures(self, failed: Exception | None) -> int:
        return self._values.num_failed + self.journal.failed + (failed is not None)

    def _settle(self, update: AnyUpdate, sharding: Any) -> bool:
        """Sum the gradients that an update reads; return whether it can be done."""
        try:
            sharding.settle(update.leaves, self._values)
        except Exception as error:
            if self._is_missed(error):
                raise
            return False  # the update says what is wrong
        return all(isinstance(self._values.get(leaf), torch.Tensor) for leaf in update.leaves)

    def _apply_entered(self, own: Callable[[], None], sharding: Any) -> None:
        with sharding.entered():
            self._apply(own)

    def _apply(self, own: Callable[[], None]) -> None:
        """Execute the update of a commit that is done; this rank ends if it fails: nobody else could know its state."""
        try:
            self.journal.update(own)
        except BaseException:  # noqa: BLE001 whatever it was, the parameters are half changed
            traceback.print_exc()
            print("an optimizer's step failed on this rank after it was committed: the rank ends", file=sys.stderr)
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    # ---- a heal ----

    def status(self, epoch: int) -> RankStatus:
        """Take part in epoch *epoch* from here on, and tell how far this rank has come."""
        self.epoch = epoch
        cause, self.cause = self.cause, self.cause or "its mesh is being healed"
        self._groups.settle()
        prepared = self.journal.prepared
        return RankStatus(self.journal.version, prepared[0] if prepared else 0, cause)

    def roll(self, version: int, *, again: bool) -> int:
        """Go to a version, see `Journal.roll`; return the mark of values that belong to it."""
        self.journal.roll(version, again=again)
        for sharding in self._shardings.values():
            sharding.forget_gradients()
        self._values.lost_root = LOST
        return self.journal.mark

    def peek(self, number: int) -> torch.Tensor | None:
        """The value of a tensor that is whole on this rank; None if it is not."""
        value = self._values.get(number)
        if not isinstance(value, torch.Tensor):
            return None
        settled = value.__dict__.get("_settled")
        if settled is not None and settled[0] == value._version:
            return to_host(settled[1])
        if any(not placement.is_replicate() for placement in getattr(value, "placements", ())):
            return None
        return to_host(getattr(value, "_local_tensor", value))

    def held(self, version: int, mark: int) -> Held:
        """Begin at a version, and describe what this rank has of it; what could not be given to others is lost."""
        from monarch_hpc.tensor.worker.healing.state import (  # not before it is needed: it loads DTensor
            describe_values,
            spoil_unkept,
        )

        spoil_unkept(self._values)
        self._values.lost_root = LOST
        self.journal.start_at(version, mark)
        return describe_values(self._values, self._shardings)

    def propagated(self, meshes: Sequence[int]) -> dict[int, bytes]:
        """What DTensor has worked out here for operators, by number of the mesh, for ranks that join it."""
        from monarch_hpc.tensor.worker.sharded.propagation import pack_propagated

        return {
            number: pack_propagated(self._shardings[number].held[0]) for number in meshes if number in self._shardings
        }

    def described(self, number: int) -> str:
        """The type and shape of a value; empty if it is not here."""
        value = self._values.get(number)
        return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""

    def go_on(self, order: Rejoining) -> None:
        """Go on with values of this rank's own, once all have met."""
        self._world = order.present
        if order.lost_before:
            self._values.forget()
            self._values.lost_rank, self._values.lost_before = self._rank, order.lost_before
        self.cause = ""

    def meet(self, order: Restoring | Rejoining) -> None:
        """Meet the other ranks again, whose process groups are made anew; return once all have come."""
        self.epoch = order.epoch
        self.cause = "its mesh is being healed"
        self._groups.begin(order.epoch, order.addresses)
        self._groups.agree(order.present, order.epoch)

    def restore(self, order: Restoring) -> dict[int, bytes]:
        """Exchange what ranks lack, execute operations again, and return `digests` of what this rank has."""
        from monarch_hpc.tensor.worker.healing.state import digests
        from monarch_hpc.tensor.worker.sharded.propagation import forget_propagated, take_propagated

        self._world = order.world
        self._exchange(order)
        for number in order.moved:
            if number in self._shardings:
                forget_propagated(self._shardings[number].ops.mesh)
        for number, packed in order.propagated.items():
            take_propagated(self._shardings[number].ops.mesh, packed, was_other=number in order.moved)
        if self._rank not in order.world:
            self._values.clear()
            self._values.update({0: None})
            return {}
        self.cause = ""
        return digests(self._values)

    def _exchange(self, order: Restoring) -> None:
        """Send and receive memory, and rebuild values in what was received."""
        from monarch_hpc.tensor.worker.healing.state import blank_like, memory_of, part_of, rebuild, window

        values, groups = self._values, self._groups
        values.free(order.dropped)
        values.lost_root = LOST
        memories: dict[int, torch.Tensor] = {}
        devices = {piece.storage: self._shardings[piece.mesh].ops.device for piece in order.pieces.values()}
        for tag, (source, target, number, num_bytes, place) in enumerate(order.memories):
            if self._rank == source == target:
                memories[place] = memory_of(values[number])
            elif self._rank == source:
                groups.send(order.present, [target], tag, memory_of(values[number]), 0)
            elif self._rank == target:
                like = torch.empty(num_bytes, dtype=torch.uint8)
                received, _ = groups.receive(order.present, source, tag, like)
                memories[place] = to_device(received, devices[place])
        windows: dict[int, torch.Tensor] = {}
        for piece in order.pieces.values():
            if piece.storage not in memories:
                size = math.prod(piece.shape) * piece.dtype.itemsize
                memories[piece.storage] = torch.empty(size, dtype=torch.uint8, device=devices[piece.storage])
            windows[piece.storage] = window(piece, memories[piece.storage])
        for tag, (source, target, number, taken, put, place) in enumerate(order.parts, len(order.memories)):
            if self._rank == source:
                part = part_of(values[number]._local_tensor.detach(), taken).contiguous()
                if source == target:
                    part_of(windows[place], put).copy_(part)
                else:
                    groups.send(order.present, [target], tag, part, 0)
            elif self._rank == target:
                into = part_of(windows[place], put)
                received, _ = groups.receive(order.present, source, tag, torch.empty_like(into, device="cpu"))
                into.copy_(received)
        for number, put, part in order.given:
            part_of(windows[order.pieces[number].storage], put).copy_(part)
        groups.flush_sends()
        for number, piece in order.pieces.items():
            values[number] = rebuild(piece, memories[piece.storage], self._shardings[piece.mesh].ops.mesh)
        for number, piece in order.blank.items():
            values[number] = blank_like(piece, self._shardings[piece.mesh].ops)
        for number, root in order.failed.items():
            values[number] = Failure(root)
        values.grads.update((leaf, Failure(LOST)) for leaf in order.leaves if leaf in values)
        values.num_failed = sum(type(value) is Failure for value in values.values())
        for number, state in order.random.items():
            self._shardings[number].ops.draws = state
        for sharding in self._shardings.values():
            sharding.note_moved()
        self.journal.start_at(order.version, order.mark)

    def unwritten(self, numbers: Sequence[int]) -> list[int]:
        """Those of some values that nothing was written to since they were made here."""
        return [number for number in numbers if getattr(self._values.get(number), "_version", 1) == 0]
