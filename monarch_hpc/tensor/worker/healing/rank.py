"""The steps of a heal on one rank: it says where it stands, goes to a version, joins others, gives or takes state."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from monarch_hpc.core.errors import MonarchError
from monarch_hpc.tensor.stream.holdings import Held, HeldPart, MemoryTransfer, RankStatus
from monarch_hpc.tensor.worker.collectives.groups import Groups
from monarch_hpc.tensor.worker.healing.journal import LOST, Journal, small_sums
from monarch_hpc.tensor.worker.healing.update import AnyUpdate, LocalUpdates
from monarch_hpc.tensor.worker.values import Failure, Values

__all__ = ["Halted", "RankHealing"]

_SETTLED_ELEMENTS = 16
"""Sums of so few elements are added up with a commit, so that they outlive the death of a rank: losses, norms."""


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
        return bool(self._groups.cause) or "gloo" in str(error) or isinstance(error, MonarchError)

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
                for tensor in small_sums(self._values, journal.mark, _SETTLED_ELEMENTS):
                    with torch.no_grad():
                        tensor._settled = tensor._version, tensor.detach().full_tensor()
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
            found: torch.Tensor = settled[1].clone()
            return found
        if any(not placement.is_replicate() for placement in getattr(value, "placements", ())):
            return None
        return getattr(value, "_local_tensor", value).detach().clone()

    def meet(self, epoch: int, addresses: dict[int, str]) -> None:
        """Meet the others again, whose process groups are made anew."""
        self.epoch = epoch
        self.cause = "its mesh is being healed"
        self._groups.begin(epoch, addresses)
        self._groups.agree(self._world, epoch)

    def begin(self, version: int, mark: int) -> None:
        """Begin at a version; what could not be given to another rank is marked as lost."""
        from monarch_hpc.tensor.worker.healing.state import spoil_unkept  # not before it is needed: it loads DTensor

        spoil_unkept(self._values)
        self._values.lost_root = LOST
        self.journal.start_at(version, mark)

    def held(self) -> Held:
        """Describe what this rank holds."""
        from monarch_hpc.tensor.worker.healing.state import describe_values

        meshes = {id(sharding.ops.mesh): number for number, sharding in self._shardings.items()}
        random = {number: sharding.ops.draws for number, sharding in self._shardings.items()}
        return describe_values(self._values, meshes, random)

    def exchange(
        self,
        transfers: Sequence[MemoryTransfer],
        pieces: dict[int, HeldPart],
        given: dict[int, torch.Tensor],
        blank: dict[int, HeldPart],
        failed: dict[int, int],
        random: dict[int, tuple[torch.Tensor, int, int]],
        dropped: Sequence[int],
        leaves: Sequence[int],
    ) -> None:
        """Send and receive memory, and rebuild values in what was received.

        Args:
            transfers: between all ranks, in an order that is the same on all.
            pieces: values to rebuild here.
            given: parts of values to rebuild here, from the program.
            blank: values to make here without contents, as they are on another rank.
            failed: values to mark as failed here.
            random: how far random numbers were drawn, see `ShardedOps.draws`.
            dropped: values that other ranks have dropped already.
            leaves: those whose gradients were computed before the version, and are lost.
        """
        from monarch_hpc.tensor.worker.healing.state import blank_like, memory_of, rebuild

        values = self._values
        values.free(dropped)
        memories: dict[int, torch.Tensor] = {}
        for tag, (source, target, number, num_bytes) in enumerate(transfers):
            if self._rank == source:
                self._groups.send(self._world, [target], tag, memory_of(values[number]), 0)
            elif self._rank == target:
                like = torch.empty(num_bytes, dtype=torch.uint8)
                memory, _ = self._groups.receive(self._world, source, tag, like)
                memories[pieces[number].storage] = memory
        for number, part in given.items():
            memories[pieces[number].storage] = torch.empty(0, dtype=torch.uint8).set_(part.untyped_storage())
        for number, piece in pieces.items():
            mesh = self._shardings[piece.mesh].ops.mesh
            values[number] = rebuild(piece, memories[piece.storage], mesh)
        for number, piece in blank.items():
            values[number] = blank_like(piece, self._shardings[piece.mesh].ops)
        for number, root in failed.items():
            values[number] = Failure(root)
        values.grads.update((leaf, Failure(LOST)) for leaf in leaves if leaf in values)
        values.num_failed = sum(type(value) is Failure for value in values.values())
        for number, state in random.items():
            self._shardings[number].ops.draws = state
        self._groups.flush_sends()
        self.journal.start_at(self.journal.version, self.journal.mark)

    def unwritten(self, numbers: Sequence[int]) -> list[int]:
        """Those of some values that nothing was written to since they were made here."""
        return [number for number in numbers if getattr(self._values.get(number), "_version", 1) == 0]

    def finish(self) -> None:
        """Execute operations again."""
        self.cause = ""

    def digests(self) -> dict[int, bytes]:
        """See `state.digests`."""
        from monarch_hpc.tensor.worker.healing.state import digests

        return digests(self._values)
