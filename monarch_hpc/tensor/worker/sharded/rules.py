"""Decides how an operator runs on shards: by DTensor's rule where the sweep found it right, else on whole tensors.

DTensor's rules can be wrong without an error: a view of a sharded dimension, a write to such a view. The sweep in
tests/system/tensor runs operators on many placements and uneven sizes against one process; `trusted` has what it found.
`own_rules` has those that we have instead. All other operators gather their arguments, run on every rank alike, and
give replicated results.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from monarch_hpc.tensor.worker.collectives.staging import HOST, to_device, to_host
from monarch_hpc.tensor.worker.healing.journal import Journal
from monarch_hpc.tensor.worker.sharded.communication import CommunicationCounter
from monarch_hpc.tensor.worker.sharded.own_rules.table import OWN_RULES
from monarch_hpc.tensor.worker.sharded.traits import OpTraits, traits_of, written_by
from monarch_hpc.tensor.worker.sharded.trusted import REGULAR, TRUSTED
from monarch_hpc.tensor.worker.values import storage_of

_log = logging.getLogger(__name__)

__all__ = ["ShardedOps", "is_refusal", "is_regular"]

_PLAIN = (Replicate, Shard, Partial)
_RULES = "torch/distributed/tensor/"
_RESHAPES = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"})


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class ShardedOps(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """While it is entered, operators on DTensors of *mesh* follow the table.

    Args:
        mesh: the device mesh.
        seed: of the random numbers, which are those of one process: each rank draws all of them.
        trusts: tells whether DTensor's rule of an operator is used, given `is_regular`; for the sweep.
        device: that of this rank's parts.

    Attributes:
        device: likewise.
        random_state: of the random numbers; replaced at each draw.
        journal: is told of writes and draws; None in the sweep.
        world: gives the `World` of the ranks of *mesh*, which it makes at the first call, on all of them.
        last_seed: the seed that random numbers began with.
        counter: counts collectives; None if nobody asks.
        trace: is told of writes and draws of a step that is recorded; None if none is.
        num_calls: number of calls since then of modules that live on the ranks, whose random numbers are their own.
    """

    def __init__(
        self,
        mesh: Any,
        seed: int,
        trusts: Callable[[str, bool], bool] | None = None,
        device: torch.device = HOST,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mesh = mesh
        self.device = device
        self.replicated = (Replicate(),) * mesh.ndim
        self._trusts = trusts or _is_trusted
        self.journal: Journal | None = None
        self.world: Callable[[], Any] = _no_world
        self.counter: CommunicationCounter | None = None
        self.trace: Any = None
        self._gathered: set[str] = set()
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Restart the random numbers."""
        if self.journal is not None:
            self.journal.effects += 1
        self.random_state = torch.Generator().manual_seed(seed).get_state()
        self.last_seed = seed
        self.num_calls = 0

    @property
    def draws(self) -> tuple[torch.Tensor, int, int]:
        """How far random numbers were drawn: `random_state`, `last_seed`, `num_calls`."""
        return self.random_state, self.last_seed, self.num_calls

    @draws.setter
    def draws(self, found: tuple[torch.Tensor, int, int]) -> None:
        self.random_state, self.last_seed, self.num_calls = found

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = _sharded_among(args, kwargs)
        if not tensors:
            return op(*args, **kwargs)
        if self.device != HOST:
            args, kwargs = self._on_device(op, args, kwargs)
        traits = traits_of(op)
        copied = [tensor for tensor in tensors if "_copied_at" in tensor.__dict__]
        if copied:
            _check_copies(op, traits, args, kwargs, copied)
        if traits.written and self.journal is not None:
            written = written_by(traits, args, kwargs)
            with nullcontext() if self.trace is None else self.trace.saving(written):
                self.journal.save(written)
        own = OWN_RULES.get(traits.name)
        if own is not None and not copied and not traits.draws(args, kwargs):
            result = own(self, op, args, kwargs)
            if result is not NotImplemented:
                return result
        if traits.random:
            return self._random(op, traits, args, kwargs)
        through = copied and any(one is tensor for one in written_by(traits, args, kwargs) for tensor in copied)
        if not through and _are_plain(tensors) and self._trusts(traits.name, is_regular(op, args, tensors)):
            try:
                result = op(*args, **kwargs)
            except (RuntimeError, NotImplementedError, ValueError, AssertionError, IndexError, TypeError) as error:
                if not is_refusal(error):
                    raise
                result = self.on_whole(op, traits, args, kwargs)
        else:
            result = self.on_whole(op, traits, args, kwargs)
        if traits.views:
            _mark_copies(result, tensors[0])
        return result

    def _on_device(self, op: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments as parts on another device than the CPU need them."""
        if kwargs.get("device") is not None:  # the program's name for it is that of the CPU
            kwargs = {**kwargs, "device": self.device}
        if op is torch.ops.aten.copy_.default and not isinstance(
            args[1], DTensor
        ):  # x[...] = 1: on CPUs, that is a fill
            args = args[0], self.wrap(args[1]), *args[2:]
        return args, kwargs

    def drawn(self, draw: Callable[..., torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next random numbers of the mesh, of which each rank draws all."""
        with self.random_numbers():
            return draw(shape, dtype=dtype)

    @contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Have torch's random numbers be those of the mesh meanwhile."""
        saved = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            with nullcontext() if self.trace is None else self.trace.drawing():
                yield
        finally:
            self.random_state = torch.get_rng_state()
            if self.journal is not None:
                self.journal.effects += 1
            torch.set_rng_state(saved)

    # ---- whole tensors ----

    def wrap(self, whole: torch.Tensor) -> DTensor:
        """The sharded tensor whose value is *whole* on every rank."""
        own = to_device(whole, self.device)
        wrapped: DTensor = DTensor.from_local(own, self.mesh, self.replicated, run_check=False)
        return wrapped

    def whole(self, tensor: Any) -> Any:
        """The value of a sharded tensor, gathered; below autograd."""
        if tensor.placements == self.replicated:
            return tensor._local_tensor
        whole = tensor.redistribute(placements=self.replicated)._local_tensor
        if whole.stride() != tensor.stride():
            strided = torch.empty_strided(tensor.shape, tensor.stride(), dtype=whole.dtype, device=whole.device)
            return strided.copy_(whole)
        return whole

    def store(self, tensor: Any, whole: torch.Tensor) -> None:
        """Write a value into the shards of a tensor."""
        placements = tuple(
            Replicate() if isinstance(placement, Partial) else placement for placement in tensor.placements
        )
        local = self.wrap(whole).redistribute(placements=placements)._local_tensor
        for place, placement in enumerate(tensor.placements):
            # A sum of parts: the value on the first rank of the dimension, and nothing on the others.
            if isinstance(placement, Partial) and placement.reduce_op == "sum" and self.mesh.get_local_rank(place):
                local = torch.zeros_like(local)
        tensor._local_tensor.copy_(local)

    def on_whole(self, op: Any, traits: OpTraits, args: Any, kwargs: Any) -> Any:
        """Run an operator on gathered arguments; what it writes to is written back.

        One that draws random numbers runs in host memory, whose generator is that of the program.

        Raises:
            NotImplementedError: it changes the shape of an argument, or draws random numbers only on a GPU.
        """
        if traits.resizes and traits.written:
            raise NotImplementedError(
                f"{op}: changes the shape of a sharded tensor in place; use the form that returns a new tensor"
            )
        self._tell_gathering(str(op), args, kwargs)
        on_host = self.device != HOST and traits.draws(args, kwargs)
        if on_host and not traits.has_host_kernel:
            raise NotImplementedError(
                f"{op}: draws random numbers on a GPU, which are not those of the mesh; leave out its dropout, or "
                "write it as matmul, softmax and dropout"
            )
        placed = to_host if on_host else _as_it_is
        if on_host and kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": HOST}
        wholes: dict[int, torch.Tensor] = {}
        sources: list[tuple[DTensor, torch.Tensor]] = []
        written = [leaf for leaf in written_by(traits, args, kwargs) if isinstance(leaf, DTensor)]
        for tensor in written:
            if "_copied_at" in tensor.__dict__:  # a view that is a copy: write to the tensor behind it, too
                base: Any = tensor._base
                source = placed(self.whole(base).clone())
                sources.append((base, source))
                wholes[id(tensor)] = tensor._view_func_unsafe(source)

        def gathered(leaf: Any) -> Any:
            if not isinstance(leaf, DTensor):
                return leaf
            if id(leaf) not in wholes:
                wholes[id(leaf)] = placed(self.whole(leaf))
            return wholes[id(leaf)]

        run_args, run_kwargs = tree_map(gathered, (args, kwargs))
        result = op(*run_args, **run_kwargs)
        for tensor in written:
            if wholes[id(tensor)] is not tensor._local_tensor:
                self.store(tensor, wholes[id(tensor)])
            if "_copied_at" in tensor.__dict__:
                tensor._copied_at += 1  # type: ignore[attr-defined]  # torch counts the write when this returns
        for base, source in sources:
            self.store(base, source)
        back = {id(wholes[id(tensor)]): tensor for tensor in written}

        def sharded(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return back[id(leaf)] if id(leaf) in back else self.wrap(leaf)

        return tree_map(sharded, result)

    def _tell_gathering(self, op: str, args: Any, kwargs: Any) -> None:
        """Warn, once for each operator and on the first rank, that it gathers its arguments."""
        if op in self._gathered:
            return
        if any(one.placements != self.replicated for one in tree_iter((args, kwargs)) if isinstance(one, DTensor)):
            self._gathered.add(op)
            if self.mesh.get_rank() != int(self.mesh.mesh.flatten()[0]):
                return
            _log.warning(
                "%s runs on whole tensors, which each rank gathers, as no rule for shards is known to be right: its "
                "values are right, at the cost of communication and memory; see mesh.communication()",
                op,
            )

    def _random(self, op: Any, traits: OpTraits, args: Any, kwargs: Any) -> Any:
        """Draw as one process does, each rank all numbers, and keep this rank's share."""
        like = next(leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, DTensor))
        if traits.value_free:
            whole = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
            if kwargs.get("device") is not None:
                kwargs = {**kwargs, "device": HOST}
            with self.random_numbers():
                result = op(whole, *args[1:], **kwargs)
            if traits.written:
                self.store(args[0], result)
                return args[0]
            result = self.wrap(result)
        else:
            with self.random_numbers():
                result = self.on_whole(op, traits, args, kwargs)
        if traits.written or any(isinstance(placement, Partial) for placement in like.placements):
            return result
        return tree_map(
            lambda leaf: (
                leaf.redistribute(placements=like.placements)
                if isinstance(leaf, DTensor) and leaf.shape == like.shape
                else leaf
            ),
            result,
        )


def _sharded_among(args: Any, kwargs: Any) -> list[DTensor]:
    """The sharded tensors among arguments of an operator; torch's own way takes longer than one."""
    found: list[DTensor] = []
    for leaf in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(leaf, DTensor):
            found.append(leaf)
        elif isinstance(leaf, (list, tuple)):
            found += _sharded_among(leaf, None)
        elif isinstance(leaf, dict):
            found += _sharded_among((), leaf)
    return found


def _no_world() -> Any:
    raise RuntimeError("these operators run without ranks")


def _is_trusted(name: str, regular: bool) -> bool:
    return name in TRUSTED or (regular and name in REGULAR)


def _are_plain(tensors: list[DTensor]) -> bool:
    return all(type(placement) in _PLAIN for tensor in tensors for placement in tensor.placements)


def is_regular(op: Any, args: Any, tensors: list[Any]) -> bool:
    """Whether the shards of each tensor have one size, and of a view those of its result, too, in the same order."""
    if str(op) in _RESHAPES and isinstance(args[0], DTensor) and not _keeps_shards(args[0], args[1]):
        return False
    for tensor in tensors:
        sizes = list(tensor.shape)
        for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
            if isinstance(placement, Shard):
                if sizes[placement.dim] % size:
                    return False
                sizes[placement.dim] //= size
    return True


def _keeps_shards(tensor: DTensor, given: Any) -> bool:
    """Whether in a view of shape *given* each sharded dimension begins where it did, and divides."""
    old, new = list(tensor.shape), list(given)
    if -1 in new:
        rest = math.prod(size for size in new if size >= 0)
        new[new.index(-1)] = math.prod(old) // rest if rest else 0
    for dim in {placement.dim for placement in tensor.placements if isinstance(placement, Shard)}:
        num = math.prod(
            size
            for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True)
            if isinstance(placement, Shard) and placement.dim == dim
        )
        before = math.prod(old[:dim])
        # A dimension of size 1 begins where the next one does.
        at = next((e for e in range(len(new)) if math.prod(new[:e]) == before and new[e] > 1), None)
        if at is None or old[dim] <= 1 or new[at] % num or (new[at] % old[dim] and old[dim] % new[at]):
            return False
    return True


def is_refusal(error: BaseException) -> bool:
    """Whether DTensor has refused before anything ran, as on all other ranks."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and _RULES in trace.tb_frame.f_code.co_filename


# ---- views ----


def _mark_copies(result: Any, source: DTensor) -> None:
    """Mark results that should be views, but are copies: a write would be lost."""
    inherited = source.__dict__.get("_copied_at")
    for leaf in tree_iter(result):
        if isinstance(leaf, DTensor) and leaf is not source:
            if inherited is not None:
                leaf._copied_at = inherited  # type: ignore[attr-defined]
            elif storage_of(leaf) != storage_of(source):
                leaf._copied_at = source._version  # type: ignore[attr-defined]


def _check_copies(op: Any, traits: OpTraits, args: Any, kwargs: Any, copied: list[DTensor]) -> None:
    written = {id(leaf) for leaf in written_by(traits, args, kwargs)}
    for tensor in copied:
        if id(tensor) in written and not tensor._is_view():  # what detach() and no_grad() hide
            raise RuntimeError(
                f"{op}: this view crosses shards, so that it is a copy, and a write to it would be lost; write to the "
                "tensor itself, as in x[...] = y"
            )
        if tensor._version != tensor._copied_at:  # type: ignore[attr-defined]
            raise RuntimeError(
                f"{op}: this view crosses shards, so that it is a copy, and its tensor was written to since; make the "
                "view again"
            )
