"""Checkpoints, written and read by all ranks in the format of torch.distributed.checkpoint.

A folder without ``.metadata`` is not a checkpoint: the first rank writes it last. A rank that fails tells the others,
so that none waits for it. What a save that was killed has left does not count for the next one. Each rank writes in a
thread, so that its worker can leave the save when another rank is lost: a large part takes longer than a heal waits.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from monarch_hpc.core.storage.files import read_own
from monarch_hpc.core.text.description import class_name, text_of
from monarch_hpc.tensor.worker.collectives.waits import Waits
from monarch_hpc.tensor.worker.sharded.calls import current_ops
from monarch_hpc.tensor.worker.training.claims import Claim, NewFiles, write_part
from monarch_hpc.tensor.worker.training.placed import placements_on

__all__ = ["Save", "begin", "contents", "is_done", "load", "new_like", "outcome", "random_state", "set_random_state"]


class Save:
    """A checkpoint that this rank takes part in.

    Args:
        tree: what is saved.
        path: of the folder.
        timeout_s: longest wait of the first rank for the others, after it has written its part.
        waits: those of the ranks that save, which end when one of them is lost.
    """

    def __init__(self, tree: dict[str, Any], path: str, timeout_s: float, waits: Waits) -> None:
        self._folder = Path(path)
        self._timeout_s = timeout_s
        self._waits = waits
        self._error: BaseException | None = None
        self._thread = Thread(target=self._write, name="checkpoint", daemon=True)
        self._rank, self._num = dist.get_rank(), dist.get_world_size()
        self._metadata: Any = None
        self._claim: Claim | None = None
        self._name = _agreed(self._claimed)[0]
        try:
            self._prepare(tree, path)
        except BaseException:
            self._release()
            raise
        self._thread.start()

    def _prepare(self, tree: dict[str, Any], path: str) -> None:
        self._writer = FileSystemWriter(path, single_file_per_rank=True)
        self._writer.fs = self._claim or NewFiles()
        self._planner = DefaultSavePlanner()
        plans = _agreed(lambda: self._local_plan(tree))
        merged = _agreed(lambda: self._global_plans(plans) if self._rank == 0 else None)
        self._plan = self._planner.finish_plan(merged[0][self._rank])

    def _claimed(self) -> str:
        """In the first rank, claim the folder, and return the name of this save."""
        if self._rank != 0:
            return ""
        self._claim = Claim(self._folder)
        return self._claim.name

    def _release(self) -> None:
        """Let go of the folder, and remove what the ranks have told the first one."""
        if self._claim is not None:
            for rank in range(self._num):
                with contextlib.suppress(OSError):
                    self._path_of(rank).unlink(missing_ok=True)
            self._claim.end()

    def _local_plan(self, tree: dict[str, Any]) -> Any:
        is_first = self._rank == 0
        self._planner.set_up_planner(tree, self._writer.storage_meta(), is_first)
        self._writer.set_up_storage_writer(is_first)
        return self._writer.prepare_local_plan(self._planner.create_local_plan())

    def _global_plans(self, plans: list[Any]) -> Any:
        merged, self._metadata = self._planner.create_global_plan(plans)
        plans = self._writer.prepare_global_plan(merged)
        for rank, plan in enumerate(plans):
            plan.storage_data.prefix = f"__{rank}_{self._name}_"  # which another save's parts do not have
        return plans

    def _write(self) -> None:
        """Write this rank's part; the first rank completes the checkpoint."""
        try:
            self._part(self._rank, self._written())
            if self._rank == 0:
                results = [self._result_of(rank) for rank in range(self._num)]
                self._writer.finish(self._metadata, results)
        except BaseException as error:  # noqa: BLE001 it is raised where somebody waits for the checkpoint
            self._error = error
        finally:
            self._release()

    def _written(self) -> Any:
        try:
            return self._writer.write_data(self._plan, self._planner).wait()
        except Exception as error:  # noqa: BLE001 the first rank must learn of it
            self._error = error
            return f"{class_name(error)}: {text_of(error)}"

    def _path_of(self, rank: int) -> Path:
        return self._folder / f".written-{self._name}-{rank}"

    def _part(self, rank: int, result: Any) -> None:
        partial = self._folder / f".writing-{self._name}-{rank}"
        try:
            write_part(partial, pickle.dumps(result))
        finally:
            partial.replace(self._path_of(rank))

    def _result_of(self, rank: int) -> Any:
        path = self._path_of(rank)

        def look(limit_s: float) -> bytes:
            if not path.exists():
                time.sleep(limit_s)  # a write takes longer
                raise TimeoutError
            return read_own(path)  # it is unpickled, and the folder may be a group's

        try:
            told = self._waits.ask(look, self._timeout_s)
        except TimeoutError as error:
            problem = f"rank {rank} has not written its part of {self._folder} in {self._timeout_s:.0f} s"
            raise TimeoutError(problem) from error
        result = pickle.loads(told) if told else "no room even for a reason: the disk is full"
        if isinstance(result, str):
            raise OSError(f"rank {rank} has not written its part of {self._folder}: {result}")
        return result

    @property
    def is_done(self) -> bool:
        """Whether it is written, or has failed."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait until it is written.

        Raises:
            Exception: it is not.
        """
        self._waits.ask(self._join, math.inf)
        _agreed(self._raise)

    def _join(self, limit_s: float) -> None:
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise TimeoutError

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _agreed(call: Callable[[], Any]) -> list[Any]:
    """The results of *call* on all ranks.

    Raises:
        Exception: of the first rank that failed; its own class on that rank, OSError or RuntimeError on others.
    """
    error: Exception | None = None
    found: Any = None
    try:
        found = call()
    except Exception as caught:  # noqa: BLE001 the other ranks wait for this one
        error = caught
    results: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(results, (found, None if error is None else _plain(error)))
    failed = next((one for _, one in results if one is not None), None)
    if failed is not None:
        raise failed
    return [one for one, _ in results]


def _plain(error: Exception) -> Exception:
    """The error as one that can be sent."""
    known = next(
        (cls for cls in (FileExistsError, FileNotFoundError, KeyError, OSError) if isinstance(error, cls)), None
    )
    if isinstance(error, OSError) and known is not None and error.filename is not None:
        return known(error.errno, error.strerror, str(error.filename))
    if known is not None:
        return known(*error.args)
    return RuntimeError(f"{class_name(error)}: {text_of(error)}")


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if not isinstance(leaf, DTensor):
        return leaf.clone()
    return DTensor.from_local(
        leaf._local_tensor.clone(),
        leaf.device_mesh,
        leaf.placements,
        run_check=False,
        shape=leaf.shape,
        stride=leaf.stride(),
    )


# ---- what the program calls by name ----


def begin(tree: dict[str, Any], path: str, timeout_s: float, background: bool) -> Save:
    """Save a checkpoint; in the background, of values as they are at this point of the program."""
    world = current_ops().world()
    with torch.no_grad(), _disable_current_modes(), world:
        tree = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, tree)
        save = Save(tree_map(_copied, tree) if background else tree, path, timeout_s, world.waits)
        if not background:
            save.finish()
    return save


def is_done(save: Save) -> bool:
    """Whether a checkpoint is written, or has failed."""
    return save.is_done


def outcome(save: Save) -> None:
    """Wait until a checkpoint is written; its error is raised on all ranks."""
    with _disable_current_modes(), current_ops().world():
        save.finish()


def contents(path: str) -> dict[tuple[Any, ...], tuple[tuple[int, ...], torch.dtype] | None]:
    """What a checkpoint has: for each path in its tree the shape and type of a tensor, or None for another object."""
    with _disable_current_modes(), current_ops().world():
        metadata = _agreed(lambda: _read_metadata(path) if dist.get_rank() == 0 else None)[0]
    found: dict[tuple[Any, ...], Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        place = (metadata.planner_data or {}).get(name, (name,))
        is_tensor = isinstance(entry, TensorStorageMetadata)
        found[tuple(place)] = (tuple(entry.size), entry.properties.dtype) if is_tensor else None
    return found


def _read_metadata(path: str) -> Any:
    where = Path(path) / ".metadata"
    if not where.exists():
        raise FileNotFoundError(f"{path} has no complete checkpoint: there is no .metadata")
    _check_file(where)
    with _naming(str(where)):
        return FileSystemReader(path).read_metadata()


def _check_file(path: Path) -> None:
    """Refuse what is not a regular file, such as a pipe, which would be waited for."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a regular file, and so no part of a checkpoint: load another one")


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name *path* in errors of torch, which say what is wrong with the bytes, and not where they are."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        what = f"{class_name(error)}: {text_of(error)}"
        raise OSError(f"{path} is damaged, or not of a checkpoint: {what}; load another one") from error


def new_like(like: Any, shape: tuple[int, ...], dtype: torch.dtype) -> DTensor:
    """A sharded tensor of zeros to load into, placed as *like* if that has the same shape; else each rank has all."""
    ops = current_ops()
    placements = ops.replicated
    if isinstance(like, DTensor) and tuple(like.shape) == shape:
        placements = placements_on(ops.mesh, like)
    with torch.no_grad(), _disable_current_modes():
        whole = torch.zeros((), dtype=dtype, device=ops.device).expand(shape)
        part = ops.wrap(whole).redistribute(placements=placements)._local_tensor.contiguous().clone()
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(part, ops.mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def load(tree: dict[str, Any], path: str) -> dict[str, Any]:
    """Load a checkpoint into the tensors of a tree; return the tree, with other objects as they were saved.

    Sharded tensors in the returned tree are None: they are loaded where they lie.
    """
    with torch.no_grad(), _disable_current_modes(), current_ops().world():
        inner = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, tree)
        planner = DefaultLoadPlanner()
        reader = FileSystemReader(path)
        is_first = dist.get_rank() == 0

        def plan() -> Any:
            metadata = _read_metadata(path)
            for name in {info.relative_path for info in metadata.storage_data.values()}:
                _check_file(Path(path) / name)
            planner.set_up_planner(inner, metadata, is_first)
            reader.set_up_storage_reader(metadata, is_first)
            return reader.prepare_local_plan(planner.create_local_plan())

        plans = _agreed(plan)
        merged = reader.prepare_global_plan(planner.create_global_plan(plans))
        final = planner.finish_plan(merged[dist.get_rank()])
        _agreed(lambda: _read(reader, final, planner, path))
        for leaf in tree_iter(tree):
            if isinstance(leaf, DTensor):
                torch.autograd.graph.increment_version(leaf)  # DTensors do not see what their shards go through
        loaded: dict[str, Any] = tree_map(lambda leaf: None if isinstance(leaf, DTensor) else leaf, inner)
        return loaded


def _read(reader: Any, plan: Any, planner: Any, path: str) -> None:
    with _naming(path):
        reader.read_data(plan, planner).wait()


def random_state() -> dict[str, Any]:
    """The state of the random numbers of the mesh, which does not depend on its shape."""
    ops = current_ops()
    return {"seed": ops.last_seed, "num_calls": ops.num_calls, "state": ops.random_state}


def set_random_state(found: dict[str, Any]) -> None:
    """Return to a state from `random_state`."""
    ops = current_ops()
    ops.seed(int(found["seed"]))
    ops.num_calls = int(found["num_calls"])
    ops.random_state = found["state"]
