"""Modules that live on the ranks: built there, called by one record, outside of the rules for sharded tensors.

Between a module and the sharded tensors around it stands a function of autograd, whose backward is one of its own: DDP,
FSDP and compiled code see plain tensors, plain operators and a world of torch.distributed, as in an SPMD program.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import own_folder
from monarch_hpc.tensor.stream.records import ModulePlan
from monarch_hpc.tensor.worker.gradients import run_backward
from monarch_hpc.tensor.worker.sharded.calls import current_ops, global_placements
from monarch_hpc.tensor.worker.sharded.modes import WithoutModes
from monarch_hpc.tensor.worker.sharded.wrapping import wrapped
from monarch_hpc.tensor.worker.training.gradients import SummedGradients
from monarch_hpc.tensor.worker.training.placed import (
    batch_dims_of,
    behind_dtensor,
    dims_of_group,
    layout_of,
    placed_as,
)

__all__ = ["HostedModule", "build", "check_compile_cache", "forward", "set_training", "tensors"]

_LEAVES = frozenset({DTensor, torch.Tensor, bool, int, float, str, type(None)})
"""Types of arguments that are surely no containers."""


class HostedModule:
    """A module on this rank; see `module_to_mesh`.

    Args:
        module: the module.
        plan: how it is parallel.

    Attributes:
        batch_dims: for each dimension of the mesh, whether the ranks along it have different parts of the batch.
        params: its parameters, in the order of `named_parameters` of the module that was given.
        gradients: sums the gradients that nothing else does; None if DTensor does.
    """

    def __init__(self, module: nn.Module, plan: ModulePlan) -> None:
        self.ops = current_ops()
        self.plan = plan
        module.to(self.ops.device)
        self.batch_dims = batch_dims_of(plan.out_dims or (), self.ops.mesh.ndim)
        self._modules = list(module.modules())
        params = [_place(module, name) for name, _ in module.named_parameters()]
        buffers = [_place(module, name) for name, _ in module.named_buffers()]
        self.is_local = plan.out_dims is not None
        self._runner = module
        self._out_dims = plan.out_dims or ()
        self._gates = [torch.zeros((), requires_grad=flag) for flag in (False, True)]
        self._scale = 1
        self.gradients: SummedGradients | None = None
        if self.is_local:
            self.world = self.ops.world()
            with self.outside():
                self._runner = self._parallelized(module)
        else:
            _shard(module, plan.shard_dims)
        self.params = [getattr(owner, name) for owner, name in params]
        self.buffers = [getattr(owner, name) for owner, name in buffers]
        if self.is_local:
            self.gradients = self._summed()

    def _parallelized(self, module: nn.Module) -> nn.Module:
        runner = module
        if self.plan.parallelize is not None:
            found = self.plan.parallelize(module, self.world.mesh)
            runner = module if found is None else found
            if not isinstance(runner, nn.Module):
                raise TypeError(f"parallelize returned {runner!r}: it returns the module, or None")
        for part in runner.modules():
            if isinstance(part, FSDPModule):
                # The loss is the mean of the global batch, so that gradients add up.
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
            if isinstance(part, DistributedDataParallel) and part is not runner:
                raise NotImplementedError(
                    "parallelize wrapped a part of the module in DistributedDataParallel: wrap the whole module"
                )
        if isinstance(runner, DistributedDataParallel):
            # It averages what backward passes have added up; what they add is made larger, see `_Inner.backward`.
            self._scale = runner.process_group.size()
        if self.plan.compile:
            check_compile_cache()
            runner.compile(backend=self.plan.compile)
        return runner

    def _summed(self) -> SummedGradients:
        """The sums over ranks with other parts of the batch that are left to do."""
        mesh = self.world.mesh
        batch = {mesh.mesh_dim_names[place] for place, dim in enumerate(self.batch_dims) if dim}
        if isinstance(self._runner, DistributedDataParallel):
            batch -= dims_of_group(self._runner.process_group, mesh)
        covered = [set(p.device_mesh.mesh_dim_names or ()) if isinstance(p, DTensor) else set() for p in self.params]
        dims = [tuple(name for name in mesh.mesh_dim_names if name in batch - own) for own in covered]
        return SummedGradients(self.params, dims, mesh)

    # ---- runs ----

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Run code of the module: without the rules for sharded tensors, in a world."""
        saved = torch.get_rng_state()
        try:
            with WithoutModes(), self.world:
                yield
        finally:
            torch.set_rng_state(saved)

    def _seed(self) -> None:
        """Begin the random numbers of a call, which differ between calls, and between parts of a batch."""
        self.ops.num_calls += 1
        coordinate = self.ops.mesh.get_coordinate() or ()
        own = [place if differs else 0 for place, differs in zip(coordinate, self.batch_dims, strict=True)]
        seed = functools.reduce(
            lambda total, one: total * 1_000_003 + one, [self.ops.num_calls, *own], self.ops.last_seed
        )
        _seed_generators(seed % (1 << 63))

    def set_training(self, flags: tuple[bool, ...]) -> None:
        """Set whether each part of the module, in the order of `modules()`, is in training mode."""
        self._runner.training = flags[0]
        for part, flag in zip(self._modules, flags, strict=True):
            part.training = flag

    def __call__(self, shapes: tuple[tuple[int, ...], ...], args: Any, kwargs: Any) -> Any:
        """Call the module on sharded tensors; see `forward`."""
        if not self.is_local:
            return self._runner(*args, **kwargs)
        if self.gradients is not None and self.gradients.torn:
            raise RuntimeError(self.gradients.torn)
        leaves, call = _flattened(args, kwargs)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, DTensor)]
        inputs = [_local_part(leaves[place]) for place in places]
        outs: list[Any] = []
        structure: list[Any] = []

        def run(given: Any) -> list[torch.Tensor]:
            for place, tensor in zip(places, given, strict=True):
                leaves[place] = tensor
            with self.outside():
                self._seed()
                result = call(self._runner, leaves)
                found, shape = ([result], None) if type(result) is torch.Tensor else tree_flatten(result)
                found = [behind_dtensor(leaf) for leaf in found]
            outs[:], structure[:] = found, [shape]
            return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]

        with WithoutModes():
            if torch.is_grad_enabled():
                gate = self._gates[any(param.requires_grad for param in self.params)]
                made = _Inner.apply(self, run, shapes, gate, *inputs)  # type: ignore[no-untyped-call]
            else:
                made = self.sharded(run(inputs), shapes)
        results = iter(made)
        filled = [next(results) if isinstance(leaf, torch.Tensor) else leaf for leaf in outs]
        return filled[0] if structure[0] is None else tree_unflatten(filled, structure[0])

    def sharded(self, own: list[torch.Tensor], shapes: tuple[tuple[int, ...], ...]) -> list[DTensor]:
        """The sharded tensors of which the module returned this rank's parts, unknown to autograd."""
        if len(own) != len(shapes):
            raise RuntimeError(
                f"the module returned {len(own)} tensors on this rank, and {len(shapes)} where the program asked it "
                "for shapes: its forward must return as many everywhere"
            )
        return [self._placed(one.detach(), shape) for one, shape in zip(own, shapes, strict=True)]

    def _placed(self, own: torch.Tensor, shape: tuple[int, ...]) -> DTensor:
        layout = layout_of(shape, self.ops.mesh, self._out_dims)
        if own.shape != layout.part:
            raise RuntimeError(
                f"the module returned a tensor of shape {tuple(own.shape)} on this rank, where its part of {shape} is "
                f"{layout.part}: out_spec= must say how results are split, and arguments must be distributed likewise"
            )
        return wrapped(own, self.ops.mesh, layout.placements, shape, layout.stride)

    def _part_of_gradient(self, grad: Any, result: torch.Tensor) -> torch.Tensor:
        """This rank's part of the gradient of a result, which may be whole on each rank."""
        if grad is None:  # of one that the loss does not depend on
            return torch.zeros_like(result)
        if not isinstance(grad, DTensor):
            return cast("torch.Tensor", grad)
        layout = layout_of(grad.shape, self.ops.mesh, self._out_dims)
        if grad.placements == layout.placements:
            return grad._local_tensor
        if grad.placements == self.ops.replicated:
            return grad._local_tensor[layout.window]
        return grad.redistribute(placements=layout.placements)._local_tensor

    def backward(self, results: list[torch.Tensor], grads: list[Any], given: list[torch.Tensor]) -> list[Any]:
        """Run the module's part of a backward pass; return the gradients of its arguments."""
        assert self.gradients is not None
        self.gradients.before_backward()
        with self.outside():
            roots = [
                (result, self._part_of_gradient(grad, result))
                for result, grad in zip(results, grads, strict=True)
                if result.requires_grad
            ]
            scaled = [grad * self._scale if self._scale > 1 else grad for _, grad in roots]
            with torch.enable_grad():
                run_backward(tuple(result for result, _ in roots), tuple(scaled), retain=_retains())
        self.gradients.after_backward()
        found = [tensor.grad if tensor.requires_grad else None for tensor in given]
        for tensor in given:
            tensor.grad = None
        return [grad / self._scale if self._scale > 1 and grad is not None else grad for grad in found]


class _Inner(torch.autograd.Function):
    """Runs a module with a graph of its own, which its backward goes through."""

    @staticmethod
    def forward(
        ctx: Any, hosted: HostedModule, run: Callable[[Any], list[Any]], shapes: Any, gate: Any, *inputs: Any
    ) -> Any:
        with torch.enable_grad():
            ctx.given = [one.detach().requires_grad_() if one.requires_grad else one.detach() for one in inputs]
            ctx.results = run(ctx.given)
        ctx.hosted = hosted
        ctx.set_materialize_grads(False)
        returned = tuple(hosted.sharded(ctx.results, shapes))
        ctx.mark_non_differentiable(
            *(own for own, one in zip(returned, ctx.results, strict=True) if not one.requires_grad)
        )
        return returned

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.results is None:
            raise RuntimeError(
                "a second backward pass through a module on the ranks: pass retain_graph=True to the first"
            )
        found = ctx.hosted.backward(ctx.results, list(grads), ctx.given)
        if not _retains():
            ctx.results = ctx.given = None  # a second backward fails, as of any graph
        return None, None, None, None, *found


def _seed_generators(seed: int) -> None:
    """Seed this process's generators: torch.manual_seed queues work, and a stack trace, for each absent accelerator."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        torch.cuda.manual_seed_all(seed)


def _retains() -> bool:
    """Whether the backward pass under way keeps its graph."""
    found: bool = torch._C._autograd._get_current_graph_task_keep_graph()
    return found


def _flattened(args: Any, kwargs: Any) -> tuple[list[Any], Callable[[Any, list[Any]], Any]]:
    """The leaves of arguments, and what calls a function with others in their places.

    Arguments that are leaves themselves are most, and torch's own way looks at each as at a container.
    """
    if not kwargs and all(type(one) in _LEAVES for one in args):
        return list(args), lambda function, leaves: function(*leaves)
    found, tree = tree_flatten((args, kwargs))

    def call(function: Any, leaves: list[Any]) -> Any:
        given, named = tree_unflatten(leaves, tree)
        return function(*given, **named)

    return found, call


def _local_part(tensor: DTensor) -> torch.Tensor:
    if any(isinstance(one, Partial) for one in tensor.placements):
        tensor = tensor.redistribute(
            placements=[Replicate() if isinstance(one, Partial) else one for one in tensor.placements]
        )
    own = tensor._local_tensor
    return own if not tensor.requires_grad and type(own) is torch.Tensor else tensor.to_local()


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, own = name.rpartition(".")
    return module.get_submodule(owner), own


def _shard(module: nn.Module, shard_dims: dict[str, tuple[int, ...]]) -> None:
    """Make the parameters and buffers of a module sharded tensors."""
    ops = current_ops()
    made: dict[int, Any] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        if id(tensor) not in made:
            dims = shard_dims.get(name, (-1,) * ops.mesh.ndim)
            with torch.no_grad():
                sharded = ops.wrap(tensor.detach()).redistribute(placements=global_placements(dims))
                sharded = DTensor.from_local(
                    sharded._local_tensor.contiguous(),
                    ops.mesh,
                    global_placements(dims),
                    run_check=False,
                    shape=tensor.shape,
                    stride=tensor.contiguous().stride(),
                )
            is_param = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(sharded, tensor.requires_grad) if is_param else sharded
        owner, own = _place(module, name)
        setattr(owner, own, made[id(tensor)])


# ---- what the program calls by name ----


def build(module: nn.Module, plan: ModulePlan) -> HostedModule:
    """Build a module on this rank."""
    return HostedModule(module, plan)


def tensors(hosted: HostedModule) -> list[Any]:
    """The parameters and buffers as sharded tensors, which share their memory."""
    if not hosted.is_local:
        return [*hosted.params, *hosted.buffers]
    mesh = hosted.ops.mesh
    found = [hosted.gradients.stand_in(place, mesh) for place in range(len(hosted.params))]  # type: ignore[union-attr]
    return found + [placed_as(buffer, mesh, None) for buffer in hosted.buffers]


def set_training(hosted: HostedModule, flags: tuple[bool, ...]) -> None:
    """See `HostedModule.set_training`."""
    hosted.set_training(flags)


def forward(hosted: HostedModule, shapes: tuple[tuple[int, ...], ...], *args: Any, **kwargs: Any) -> Any:
    """Call a module.

    Args:
        hosted: the module.
        shapes: of the tensors in its result, whole.
        *args: its arguments.
        **kwargs: likewise.

    Raises:
        RuntimeError: it returned a tensor of another shape than this rank's part has, or another number of tensors.
    """
    return hosted(shapes, args, kwargs)


def check_compile_cache() -> None:
    """Check that no other user can put compiled code where torch looks for it, unless the user has named the folder.

    By default that is a folder in the temporary directory whose name any user can guess, and make first.

    Raises:
        ConfigError: others can.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # loaded by torch.compile, too

    folder = default_cache_dir()
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", folder) != folder:
        return
    try:
        own_folder(Path(folder))
    except ConfigError as error:
        problem = f"torch.compile would run code from it: {error.problem}; or set TORCHINDUCTOR_CACHE_DIR"
        raise ConfigError("", "", folder, problem) from error
