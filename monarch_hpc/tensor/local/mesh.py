"""A mesh of ranks in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import completed, pending
from monarch_hpc.config.sections.tensor import TensorConfig
from monarch_hpc.core.arguments import check_number
from monarch_hpc.core.shape import Extent, Point, Region
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.view import ShownRows
from monarch_hpc.tensor.local.collectives import LocalGroups, Meetings
from monarch_hpc.tensor.local.turns import Turns
from monarch_hpc.tensor.worker.actor import TensorWorker, WorkerSettings
from monarch_hpc.tensor.worker.progress import OpProgress
from monarch_hpc.wire.frames import copy_of
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["LocalMesh", "LocalWorkers", "make_local_mesh"]


class _LocalWorker(TensorWorker):
    """The worker of a rank in this process, which is no actor."""

    def __init__(self, settings: WorkerSettings, rank: int, meetings: Meetings) -> None:
        self._prepare(settings, rank, LocalGroups(rank, meetings, settings.collective_s), OpProgress(None, 0))


class LocalWorkers:
    """The workers of some ranks; has what is used of a mesh of actors.

    Args:
        turns: the threads of all ranks.
        workers: their workers.
        region: the ranks.
    """

    def __init__(self, turns: Turns, workers: list[TensorWorker], region: Region) -> None:
        self._turns = turns
        self._workers = workers
        self._region = region

    def _viewing(self, region: Region) -> LocalWorkers:
        return LocalWorkers(self._turns, self._workers, region)

    def slice(self, **selection: int | slice) -> LocalWorkers:
        """Some of them."""
        return self._viewing(self._region.slice(**selection))

    run = property(lambda self: _LocalEndpoint(self, "run"))
    read = property(lambda self: _LocalEndpoint(self, "read"))
    describe = property(lambda self: _LocalEndpoint(self, "describe"))
    lowering = property(lambda self: _LocalEndpoint(self, "lowering"))
    device = property(lambda self: _LocalEndpoint(self, "device"))

    def answers(self, method: str, arguments: tuple[Any, ...]) -> list[Any]:
        """What a method returns, or raises, on each rank; arguments and results are copied as on their way to procs."""
        packed, buffers = dumps(arguments)

        def call(worker: TensorWorker) -> Any:
            given: Any = loads(packed, [bytearray(copy_of(buffer)) for buffer in buffers])
            answer, parts = dumps(getattr(worker, method)(*given))
            return loads(answer, [bytearray(copy_of(part)) for part in parts])

        tasks = [(rank, partial(call, self._workers[rank])) for rank in self._region.base_ranks()]
        return self._turns.run(tasks)

    @property
    def points(self) -> list[Point]:
        """Their coordinates."""
        return [self._region.extent.point(rank) for rank in range(len(self._region))]


class _LocalEndpoint:
    def __init__(self, workers: LocalWorkers, method: str) -> None:
        self._workers = workers
        self._method = method

    def options(self, **_options: Any) -> _LocalEndpoint:
        return self

    def call(self, *arguments: Any) -> Future[Any]:
        return completed(list(zip(self._workers.points, self._workers.answers(self._method, arguments), strict=True)))

    def fold(self, finish: Callable[[list[Any]], Any], *arguments: Any) -> Future[Any]:
        return self.fold_some(lambda replies, _failures: finish(replies), *arguments)

    def fold_some(self, finish: Callable[[list[Any], dict[Point, BaseException]], Any], *arguments: Any) -> Future[Any]:
        answers = self._workers.answers(self._method, arguments)
        failures = {
            point: answer
            for point, answer in zip(self._workers.points, answers, strict=True)
            if isinstance(answer, BaseException)
        }
        future: Future[Any] = pending("this process")
        try:
            future.set_result(finish(answers, failures))
        except Exception as error:  # noqa: BLE001 raised by every read of it
            future.set_exception(error)
        return future


class LocalMesh(ProcMesh):
    """Ranks in this process; see `monarch_hpc.tensor.testing.local_mesh`."""

    def __repr__(self) -> str:
        return f"<LocalMesh {self.extent}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self} cannot be sent or saved: its ranks are threads of this process; use it outside of the functions, "
            "modules and actors that travel"
        )

    def _shown_rows(self) -> ShownRows:
        return [], lambda _base_rank: []

    @property
    def _turns(self) -> dict[int, Turns]:
        turns: dict[int, Turns] = self.root._procs  # type: ignore[assignment]
        return turns

    @property
    def procs(self) -> NoReturn:
        """Refuse: there is none."""
        raise _no_procs("procs")

    def spawn(self, name: str, cls: Any, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: actors need procs."""
        raise _no_procs("spawn")

    def open_workers(self, key: int, config: TensorConfig, is_stream: bool) -> LocalWorkers:
        """Workers for the tensors of one stream."""
        num = len(self._region)
        turns = self._turns[key] = Turns(num, config.collective_s)
        settings = WorkerSettings(key, tuple(range(num)), {}, config.collective_s, config.max_lent, is_stream)
        meetings = Meetings(turns)
        made = turns.run([(rank, partial(_LocalWorker, settings, rank, meetings)) for rank in range(num)])
        for worker in made:
            if isinstance(worker, BaseException):
                raise worker
        return LocalWorkers(turns, made, self._region)

    def when_stopped(self, key: int, then: Callable[[], None]) -> None:
        """Call *then* once the workers of this key have ended."""
        self._turns[key].ended = then

    def stop(self, reason: str = "") -> Future[None]:
        """End the ranks' threads."""
        while self._turns:
            self._turns.popitem()[1].end()
        return completed(None)


def _no_procs(name: str) -> TypeError:
    return TypeError(
        f"{name} of a local mesh: its ranks are threads of this process, without actors; use open_local(...) and "
        "spawn_procs for a test with actors"
    )


_numbers = itertools.count(1)


def make_local_mesh(sizes: Mapping[str, int]) -> LocalMesh:
    """A mesh of ranks in this process.

    Args:
        sizes: sizes by name of the dimension.
    """
    for name, size in sizes.items():
        check_number(f"the size of {name}", size, least=1)
    extent = Extent(tuple(sizes), tuple(sizes.values()))
    region = Region.whole(extent)
    return LocalMesh(f"local{next(_numbers)}", 0, region, {}, owned=True)
