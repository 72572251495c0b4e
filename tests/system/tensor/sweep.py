"""Runs operators on shards, on many placements and sizes, against the same operators on whole tensors.

    python -m tests.system.tensor.sweep

writes monarch_hpc/tensor/worker/sharded/trusted.py: the operators whose rule in DTensor was never wrong. With
``--check`` it runs all operators that the samples use, a part of their calls, by that table: none may be wrong.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.collectives.gloo import GlooBackend
from monarch_hpc.tensor.worker.collectives.group import RankGroup
from monarch_hpc.tensor.worker.collectives.routes import CollectiveRoutes
from monarch_hpc.tensor.worker.collectives.waits import Waits
from monarch_hpc.tensor.worker.sharded import rules, trusted
from monarch_hpc.tensor.worker.sharded.device_mesh import make_device_mesh
from tests.system.tensor.samples import programs, words

__all__ = ["Outcome", "sweep"]

SHAPE = (2, 2)
_dist: Any = dist  # which does not declare all of its names
# In a collective of an operator; a longer stall of a rank counts as wrong. Many stall while the table is made, and none
# while it is checked.
_WAIT_S, _CHECK_S = 3.0, 60.0
_AGREED_S = 300.0

# Operators of trainings, by name without overload: for others a rule would save little, or is in `own_rules`.
CANDIDATES = frozenset(
    words(
        """
        _softmax _softmax_backward_data _to_copy _log_softmax _log_softmax_backward_data _unsafe_view abs add
        add_ addcdiv_ addcmul_ addmm alias atan2 bmm cat ceil clamp clamp_min clamp_min_ clone copy_ cos
        detach div div_ elu elu_backward embedding embedding_dense_backward eq erf exp expand expm1 fill_ floor
        fmod ge gelu gelu_backward gt hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
        hardtanh_backward hypot isfinite isinf isnan le leaky_relu leaky_relu_backward lerp lerp_
        linalg_vector_norm log log1p logical_and logical_not logical_or lt masked_fill masked_fill_ maximum mean
        minimum mish mish_backward mm mul mul_ native_layer_norm ne neg neg_ new_zeros ones_like permute
        pow relu reciprocal remainder round rsqrt rsub select sigmoid sigmoid_backward sign silu silu_backward sin
        slice softplus softplus_backward split sqrt sqrt_ square squeeze stack sub sub_ sum t tanh tanh_backward
        threshold_backward transpose trunc unbind unsqueeze view where zero_ zeros_like
        """
    )
)

Outcome = tuple[str, bool, str, str]
"""Operator, whether `is_regular`, ``right``, ``refused`` or ``wrong``, and the case."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Keeps the calls of operators on plain tensors, once for each kind of arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[Any, tuple[Any, Any, Any]] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = str(op), repr(tree_map(_shown, (args, kwargs)))
        known = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs)))
        if (
            known
            and key not in self.calls
            and torch.Tag.nondeterministic_seeded not in op.tags
            and "empty" not in str(op)
        ):
            self.calls[key] = op, *tree_map(_copied, (args, kwargs))
        return op(*args, **kwargs)


def _shown(leaf: Any) -> Any:
    return (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def recorded() -> list[tuple[Any, Any, Any]]:
    """The calls of operators in all programs and their gradients."""
    torch.manual_seed(0)
    recorder = _Recorder()
    with recorder:
        for _, program in programs():
            for result in tree_leaves(program()):
                if isinstance(result, torch.Tensor) and result.requires_grad:
                    torch.autograd.backward(result, torch.rand_like(result), retain_graph=True)
    return list(recorder.calls.values())


def _choices(tensor: torch.Tensor) -> list[tuple[Any, ...]]:
    each: list[Any] = [Replicate(), *(Shard(dim) for dim in range(tensor.ndim) if tensor.ndim)]
    if tensor.dtype.is_floating_point:
        each.append(Partial())
    return list(product(each, repeat=len(SHAPE)))


def placed(tensor: torch.Tensor, mesh: Any, placements: tuple[Any, ...]) -> DTensor:
    """The sharded form of a tensor that all ranks have; of a sum, a part on each."""
    whole = DTensor.from_local(tensor.clone(), mesh, [Replicate()] * mesh.ndim, run_check=False)
    sharded = whole.redistribute(placements=[Replicate() if p.is_partial() else p for p in placements])
    local = sharded._local_tensor.clone()
    for dim, placement in enumerate(placements):
        if placement.is_partial():
            local = local + 0.25 if mesh.get_local_rank(dim) == 0 else torch.full_like(local, -0.25)
            if any(later.is_partial() for later in placements[dim + 1 :]) and mesh.get_local_rank(dim):
                continue
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=sharded.shape, stride=sharded.stride())


class _Run:
    """One rank of the sweep."""

    def __init__(self, rank: int, path: str, trusts: Callable[[str, bool], bool] | None, num: int, seed: int) -> None:
        self._gloo: Any = _dist.ProcessGroupGloo
        self._device = self._gloo.create_device(hostname="127.0.0.1")
        self._rank, self._path, self._trusts, self._epoch = rank, path, trusts, 0
        self.all = self._backend((0, 1, 2, 3), "all", _AGREED_S)
        self.num = num
        self.random = random.Random(seed)
        self.outcomes: list[Outcome] = []
        self.wrong: Counter[tuple[str, bool]] = Counter()
        self.renew()

    def _backend(self, members: tuple[int, ...], key: str, wait_s: float) -> Any:
        options = self._gloo._Options()
        options._devices = [self._device]
        options._timeout = timedelta(seconds=wait_s)
        store = _dist.PrefixStore(f"{key} {members}", _dist.FileStore(self._path, 4))
        return self._gloo(store, members.index(self._rank), len(members), options)

    def _group(self, members: tuple[int, ...], key: str) -> RankGroup:
        backend = self._backend(members, key, _CHECK_S if self._trusts is None else _WAIT_S)
        place, num = members.index(self._rank), len(members)
        return RankGroup(
            CollectiveRoutes(GlooBackend(backend, Waits(), place, num), {}, lambda _kind, _library: None), place, num
        )

    def renew(self) -> None:
        """Make new process groups: a rank that failed alone has left the others waiting in the old ones."""
        key = f"sweep{self._epoch}"
        self._epoch += 1
        self.mesh = make_device_mesh(
            MeshSpec(self._epoch, ("a", "b"), SHAPE, (0, 1, 2, 3), 0),
            self._rank,
            lambda members: self._group(members, key),
        )
        self.mode = rules.ShardedOps(self.mesh, 0, self._trusts)

    def agreed(self, status: int) -> tuple[int, int]:
        """The lowest and the highest of all ranks' numbers."""
        both = torch.tensor([status, -status])
        options = _dist.AllreduceOptions()
        options.reduceOp = _dist.ReduceOp.MAX
        self.all.allreduce([both], options).wait()
        return -int(both[1]), int(both[0])

    def run(self, op: Any, args: Any, kwargs: Any) -> None:
        """Run one call on some placements of its tensors."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        each = [_choices(tensor) for tensor in tensors]
        chosen = [tuple(self.random.choice(one) for one in each) for _ in range(self.num)]
        # All alike, where they have the dimensions; to check the table, chance is enough.
        for placements in _choices(max(tensors, key=lambda tensor: tensor.ndim)) if self._trusts is not None else ():
            chosen.append(tuple(placements if placements in one else (Replicate(),) * 2 for one in each))
        expected_args, expected_kwargs = tree_map(_copied, (args, kwargs))
        expected = op(*expected_args, **expected_kwargs), expected_args, expected_kwargs
        for placements in dict.fromkeys(chosen):
            self.try_one(op, args, kwargs, placements, expected)

    def try_one(self, op: Any, args: Any, kwargs: Any, placements: Any, expected: Any) -> None:
        """Run one call on one choice of placements."""
        left = iter(placements)
        run_args, run_kwargs = tree_map(
            lambda leaf: placed(leaf, self.mesh, next(left)) if isinstance(leaf, torch.Tensor) else leaf,
            (args, kwargs),
        )
        sharded = [leaf for leaf in tree_leaves((run_args, run_kwargs)) if isinstance(leaf, DTensor)]
        regular, status, text = rules.is_regular(op, run_args, sharded), 0, ""
        if self.wrong[str(op), regular]:  # once is enough
            return
        found: Any = None
        try:
            with self.mode:
                found = op(*run_args, **run_kwargs)
        except Exception as error:  # noqa: BLE001 torch's errors of any class
            status, text = (1 if rules.is_refusal(error) else 3), f"{type(error).__name__}: {str(error)[:200]}"
        pairs = list(zip(tree_leaves((found, run_args, run_kwargs)), tree_leaves(expected), strict=False))
        if status == 0 and any(_is_bad(one, other) for one, other in pairs):
            status, text = 3, "shape, type or shards"
        low, high = self.agreed(status)
        if high == 0:
            status = 0 if all(_equal(one, other) for one, other in pairs) else 3
            low, high = self.agreed(status)
            text = "value" if high else ""
        kind = "right" if high == 0 else "refused" if low == high == 1 else "wrong"
        if kind == "wrong":
            self.wrong[str(op), regular] += 1
            self.renew()
        shapes = [tuple(leaf.shape) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self.outcomes.append((str(op), regular, kind, f"{shapes} {placements} {text}"))


def _is_bad(found: Any, expected: Any) -> bool:
    """Whether shape, type or shards cannot be right, so that to gather them would fail."""
    if isinstance(expected, torch.Tensor) != isinstance(found, torch.Tensor):
        return True
    if not isinstance(expected, torch.Tensor):
        return not (found == expected or callable(found))
    if found.shape != expected.shape or found.dtype != expected.dtype or not isinstance(found, DTensor):
        return True
    shape, _ = compute_local_shape_and_global_offset(found.shape, found.device_mesh, found.placements)
    return tuple(found._local_tensor.shape) != tuple(shape)


def _equal(found: Any, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return True
    try:
        whole = found.full_tensor()
    except Exception:  # noqa: BLE001 a wrong placement
        return False
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        return torch.allclose(whole, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return torch.equal(whole, expected)


def sweep(trusts: Callable[[str, bool], bool] | None, num: int, most: int, seed: int = 0) -> list[Outcome]:
    """Run recorded calls on 2 x 2 forked ranks.

    gloo ends a process whose peer sends another number of bytes than it waits for. The operator that ran is wrong then,
    and new ranks go on with the next one.

    Args:
        trusts: tells whether DTensor's rule of an operator is used; None for the table in the tree.
        num: number of random choices of placements for each call, beside those where all tensors are
            placed alike, which are for making the table only.
        most: number of calls of each operator, chosen at random.
        seed: of the choices.
    """
    left: dict[str, list[Any]] = {}
    for call in recorded():
        left.setdefault(str(call[0]), []).append(call)
    chosen = random.Random(seed)
    left = {op: calls if len(calls) <= most else chosen.sample(calls, most) for op, calls in left.items()}
    if trusts is not None:
        left = {op: calls for op, calls in left.items() if op.split(".")[1] in CANDIDATES}
    outcomes: list[Outcome] = []
    while left:
        with tempfile.TemporaryDirectory() as folder:
            ranks = []
            for rank in range(4):
                pid = os.fork()
                if not pid:
                    _rank_main(rank, folder, trusts, num, seed, left)
                ranks.append(pid)
            for pid in ranks:
                os.waitpid(pid, 0)
            for line in (Path(folder) / "outcomes").read_text().splitlines():
                op, found = json.loads(line)
                left.pop(op)
                outcomes += [(op, *one) for one in found]
        if left:
            op = next(iter(left))
            left.pop(op)
            outcomes += [(op, regular, "wrong", "it ended the process") for regular in (True, False)]
    return outcomes


def _rank_main(rank: int, folder: str, trusts: Any, num: int, seed: int, left: dict[str, list[Any]]) -> None:
    code = 1
    try:
        torch.set_num_threads(1)
        with open(f"{folder}/outcomes" if rank == 0 else os.devnull, "w") as file:
            run = _Run(rank, f"{folder}/store", trusts, num, seed)
            for op, calls in left.items():
                run.outcomes = []
                for call in calls:
                    run.run(*call)
                print(json.dumps([op, [one[1:] for one in run.outcomes]]), file=file, flush=True)
            run.agreed(0)
        code = 0
    except BaseException:  # noqa: BLE001 reported; a fork must not go on as the test
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _write(outcomes: list[Outcome]) -> None:
    """Write the table."""
    right = Counter((op, regular) for op, regular, kind, _ in outcomes if kind == "right")
    wrong = Counter((op, regular) for op, regular, kind, _ in outcomes if kind == "wrong")
    ops = {op for op, *_ in outcomes}
    always = {op for op in ops if right[op, True] and not wrong[op, True] and not wrong[op, False]}
    regular = {op for op in ops - always if right[op, True] and not wrong[op, True]}
    lines = [
        '"""The operators whose rules in DTensor are used, by `python -m tests.system.tensor.sweep`; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        '__all__ = ["REGULAR", "TORCH", "TRUSTED"]',
        "",
        f'TORCH = "{torch.__version__.partition("+")[0]}"',
        '"""The version that the sweep ran with."""',
    ]
    for name, found, text in (
        ("TRUSTED", always, "Never wrong."),
        ("REGULAR", regular, "Never wrong where all shards of a tensor have one size; see `rules`."),
    ):
        lines += ["", f"{name} = frozenset(", "    {", *(f'        "{op}",' for op in sorted(found)), "    }", ")"]
        lines += [f'"""{text}"""']
    Path(trusted.__file__).write_text("\n".join(lines) + "\n")


def main() -> int:
    """Make the table, or check it."""
    if sys.argv[1:] == ["--check"]:
        outcomes = sweep(None, 3, 1, seed=1)
    else:
        outcomes = sweep(lambda _name, _regular: True, 3, 12)
        _write(outcomes)
    print(len({op for op, *_ in outcomes}), "operators;", dict(Counter(kind for _, _, kind, _ in outcomes)))
    wrong = [(op, regular, case) for op, regular, kind, case in outcomes if kind == "wrong"]
    for op, regular, case in wrong:
        print("wrong", op, "regular" if regular else "irregular", case)
    return 1 if sys.argv[1:] and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
