"""The op stream of a mesh of procs: collects records into frames, sends them, and keeps what failed.

Frames are calls of the workers, whose answers acknowledge them. To issue waits for nothing but the window of operations
that are not acknowledged. A frame leaves when it is full, when a value is read, or after a moment.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.config.sections.tensor import TensorConfig
from monarch_hpc.core.errors import DeviceMeshError, SupervisionError
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.tensor.ops.meta import TensorOperations
from monarch_hpc.tensor.stream.capture_notes import ENGINES, FrameRecorder
from monarch_hpc.tensor.stream.engine_state import EngineState
from monarch_hpc.tensor.stream.failures import Failures
from monarch_hpc.tensor.stream.frames import FrameRead, Moment, Sequenced, is_direct, is_reached, post
from monarch_hpc.tensor.stream.issue_log import LoggedFrame
from monarch_hpc.tensor.stream.records import FREE
from monarch_hpc.tensor.stream.sites import Site, SiteLines, site_here
from monarch_hpc.tensor.stream.templates import TemplateTable
from monarch_hpc.tensor.worker.values import is_lost

__all__ = ["TensorEngine", "View"]


class View:
    """Ranks of an engine on which tensors live, and the actors there.

    Args:
        engine: the engine of the procs.
        region: the ranks, in the mesh of procs.
        workers: their workers.
        operations: what is done with tensors of this view.

    Attributes:
        at: workers and their ranks by coordinates, see `tensor.reading.worker_at`.
        dead: numbers of values to free.
        entries: what is known of operations by cache key, see `tensor.ops.dispatch`.
        mesh: number of the template that describes a mesh with sharded tensors; 0 if each rank has values of its own.
        run: the workers' endpoint for frames.
        whole: the ranks before any was left out.
    """

    __slots__ = (
        "__weakref__",
        "at",
        "dead",
        "engine",
        "entries",
        "mesh",
        "operations",
        "ranks",
        "region",
        "run",
        "whole",
        "workers",
    )

    def __init__(
        self, engine: TensorEngine, region: Region, workers: ActorMesh[Any], operations: TensorOperations
    ) -> None:
        self.engine = engine
        self.region = self.whole = region
        self.workers, self.run = workers, workers.run.options(on_error="collect")
        self.operations = operations
        self.dead: deque[int] = deque()
        self.entries: dict[tuple[Any, ...], Any] = {}
        self.mesh = 0
        self.ranks = tuple(region.base_ranks())
        self.at: dict[tuple[int, ...], tuple[ActorMesh[Any], int]] = {}

    @property
    def name(self) -> str:
        """The mesh of procs in messages."""
        return self.engine.name

    def move(self, region: Region) -> None:
        """Be on other ranks from here on, so that all tensors are; the engine's lock is held."""
        self.region, self.ranks = region, tuple(region.base_ranks())
        self.workers = self.workers._viewing(region)
        self.run = self.workers.run.options(on_error="collect")
        self.at.clear()


class TensorEngine(EngineState):
    """Issues records to the workers of one mesh of procs; for any thread.

    Args:
        name: the mesh of procs in messages.
        config: limits.
        abort: ends the collectives of the ranks that live; takes the cause, and the epoch.

    Attributes, beside those of `EngineState`:
        key: identifies the engine on the ranks.
        ints: the records of the frame that is being filled.
        sites: the lines that issued its operations.
        view: where the frame goes.
        threshold: number of integers at which it leaves.
        next_value: number of the next value.
        recorder: takes each frame that is sent while a step is captured.
        site_log: collects the lines of all frames, with the number of the first operation; None if nobody asks.
        templates: descriptions of operations, which the ranks get once.
        num_loans: number of loans that operations are checked for, see `streams.loans`.
        last_read: when a value was read last.
        step_begun: positions in `ints` and `sites` where an optimizer's step began, if the frame is held back for it.
    """

    def __init__(self, key: int, name: str, config: TensorConfig, abort: Callable[[str, int], None]) -> None:
        super().__init__(name, abort, Failures(config.keep_errors))
        self.key, self.config = key, config
        self.ints: list[int] = []
        self.sites: list[Site] = []
        self.view: View | None = None
        self.threshold = config.first_frame_ints
        self.next_value = 1
        self.views: dict[tuple[Region, bool], View] = {}
        self.recorder: FrameRecorder | None = None
        self.site_log: list[tuple[int, list[Site]]] | None = None
        self.step_begun: tuple[int, int] | None = None
        self.templates, self._lines = TemplateTable(), SiteLines()
        self._base, self._objects = 0, list[Any]()
        self._frames: deque[Sequenced] = deque()
        self.num_loans = self._num_unacked = self._num_holds = 0
        self._armed = False
        self.last_read = Moment(0, 0.0)
        ENGINES.add(self)

    @property
    def num_issued(self) -> int:
        """The number of operations."""
        return self._base + len(self.sites)

    # ---- records ----

    def use(self, view: View) -> None:
        """Fill a frame for *view*; the caller holds the lock."""
        if self.broken is not None:
            self.check()
        if self.left_out:
            self.check_present(view.ranks)
        if self.view is not view:
            if self.ints:
                self.send()
            self.view = view
        if view.mesh:
            self.templates.introduce(view.mesh, view.ranks)
        if not self.ints and not self._armed:
            self._armed = True
            self._io.call_later(self.config.flush_s, self._tick)

    def emit(
        self,
        view: View,
        record: list[int],
        num_values: int = 0,
        obj: Any = None,
        depth: int = 2,
        sites: Sequence[Site] | None = None,
        at_once: bool = True,
    ) -> int:
        """Add one record; return the number of its first result.

        Args:
            view: the ranks that execute it.
            record: its integers; -1 stands for the number of its first result, -2 for the object's place.
            num_values: number of results.
            obj: an object that it refers to.
            depth: frames up to the program's code, at most.
            sites: the lines of the operations that it stands for; None for one, of the program's code.
            at_once: whether an object is sent now, not with what follows in a moment.
        """
        with self.lock:
            self.use(view)
            first = self.next_value
            self.next_value = first + num_values
            if obj is not None:
                self._objects.append(obj)
            place = len(self._objects) - 1
            self.sites += (site_here(depth),) if sites is None else sites
            self.ints += [first if n == -1 else place if n == -2 else n for n in record]
            if (obj is not None and at_once and not self._num_holds) or len(self.ints) >= self.threshold:
                self.send()
        return first

    def template(self, key: Any, make: Callable[[], Any], view: View) -> int:
        """The number of a template, defined at the workers of *view* as of the frame that is being filled.

        Args:
            key: equal for equal templates.
            make: makes it, the first time.
        """
        with self.lock:
            self.use(view)
            number = self.templates.define(key, make)
            self.templates.introduce(number, view.ranks)
        return number

    def free_dead(self, view: View) -> None:
        """Add a record that frees the values whose tensors are gone; the caller holds the lock."""
        dead = view.dead
        num = len(dead)
        if num:
            self.ints += (FREE, num)
            self.ints += [dead.popleft() for _ in range(num)]

    # ---- frames ----

    def flush(self, read: FrameRead | None = None) -> bool:
        """Send all records that are issued; return whether *read* has left with them."""
        with self.lock:
            for view in self.views.values():
                if view.dead and self.broken is None:
                    self.use(view)
                    self.free_dead(view)
            if read is not None:
                self.last_read = Moment(self.num_issued, monotonic())
            if not self.ints:
                return False
            carried = read if read is not None and read.view is self.view and is_direct(read.workers) else None
            self.send(read=carried)
            return carried is not None

    def _tick(self) -> None:
        """Send what has waited for a moment; on the driver."""
        if not self.lock.acquire(blocking=False):
            self._io.call_later(self.config.flush_s, self._tick)
            return
        try:
            self._armed = False
            if self.ints and self.broken is None and not self._num_holds:
                assert self.view is not None
                self._armed = self.step_begun is not None or not is_reached(self.view.workers)
                if not self._armed:
                    self.send(waits=False)
                else:  # to connect again would take a wait, which the program does when it reads
                    self._io.call_later(self.config.flush_s, self._tick)
        finally:
            self.lock.release()

    def hold(self, change: int) -> None:
        """Send what is not full only for a read, while the sum of all changes is not 0; at its end, send all."""
        with self.lock:
            self._num_holds, self.threshold = self._num_holds + change, self.config.frame_ints
            if not self._num_holds and self.broken is None:
                self.flush()

    def reset_threshold(self) -> None:
        """Send a first frame early, so that ranks do not idle; further ones when they are full."""
        self.threshold = self.config.frame_ints if self._frames else self.config.first_frame_ints

    def send(self, *, waits: bool = True, read: FrameRead | None = None) -> None:
        """Send the frame, which is not empty, and a read of its ranks with it; the caller holds the lock."""
        view, sites, ints, objects = self.view, self.sites, self.ints, self._objects
        assert view is not None
        if self.recorder is not None:
            self.recorder.add(view, ints, objects, sites)
        if self.site_log is not None:
            self.site_log.append((self._base, sites))
        issued = LoggedFrame(view, self._base, ints, objects, sites)
        self._base += len(sites)
        self.ints, self.sites, self._objects, self.step_begun = [], [], [], None
        self.threshold = self.config.frame_ints
        if self.log is not None:
            self.log.add(issued)
        self._post(issued, waits=waits, read=read)

    def _post(self, issued: LoggedFrame, *, waits: bool, read: FrameRead | None = None) -> None:
        """Send a frame to its ranks."""
        view, base, ints, objects, sites = issued
        frame, lines = Sequenced(issued, self.epoch), self._lines.of(sites, view.ranks)
        data = array("q", ints).tobytes()
        arguments = base, self.templates.take_new(), tuple(objects), data, view.mesh, self.epoch, lines
        self._num_unacked += len(sites)
        self._frames.append(frame)
        try:
            frame.future = post(view.run, arguments, read)
        except BaseException as error:
            self._frames.remove(frame)
            self._num_unacked -= len(sites)
            if isinstance(error, SupervisionError):
                self.lose(-1, error)
            raise
        frame.future.add_done_callback(lambda done: self._acknowledge(frame, view, done))
        while waits and self._num_unacked > self.config.window_ops and self._frames:
            oldest = self._frames[0].future
            if oldest is None or self._io.driving:
                break
            oldest.exception()

    def _acknowledge(self, frame: Sequenced, view: View, done: Future[Any]) -> None:
        """Note the answers to a frame; on the driver."""
        if frame.epoch != self.epoch:
            return
        self._note_reports(frame, view.ranks, done.result(), alike=bool(view.mesh))
        self._num_unacked -= len(frame.sites)
        self._frames.remove(frame)
        if self.recovery is not None and self.broken is None:
            self.recovery.note_done(self._frames[0].base if self._frames else frame.base + len(frame.sites))
        if not self._frames and self.step_begun is None and not self._num_holds:
            self.reset_threshold()

    # ---- reads and ends ----

    def site_of(self, seq: int) -> Site | None:
        """The line that issued an operation which is not acknowledged yet."""
        for frame in list(self._frames):
            if frame.base <= seq < frame.base + len(frame.sites):
                return frame.sites[seq - frame.base]
        return None

    def error_of(self, root: int) -> Exception:
        """The exception of a failed operation; waits until the ranks have reported it."""
        for frame in list(self._frames):
            if frame.base <= root < frame.base + len(frame.sites) and frame.future is not None:
                frame.future.exception()
        if self.broken is not None:
            return self.failure()
        if is_lost(root):
            return self.lost_error(root)
        if root < 0:
            return DeviceMeshError(self.name, "lost", -1, "a value made since could not be kept when it was healed")
        return self.failures.take(root)

    def error_of_unread(self, root: int) -> Exception | None:
        """The exception of a failed operation, unless it was raised already."""
        known = root >= 0 and not is_lost(root)
        return None if known and not self.failures.is_unread(root) and not self.site_of(root) else self.error_of(root)

    def wait(self) -> None:
        """Wait until all ranks have executed what was issued.

        Raises:
            DeviceMeshError: a rank is gone.
        """
        while True:
            self.flush()
            while self._frames:
                future = self._frames[0].future
                assert future is not None
                future.exception()
                # Its callback may still run, on the thread that drives the I/O.
                self._io.wait(partial(self._is_gone, future), None)
            if self.broken is None:
                break
            self.check()
        if self.recovery is not None:
            self.recovery.release_all()

    def _is_gone(self, seen: Future[Any]) -> bool:
        return not self._frames or self._frames[0].future is not seen

    def sync(self) -> None:
        """Wait likewise, and raise an error that has not been read.

        Raises:
            DeviceMeshError: a rank is gone.
            Exception: an operation failed.
        """
        self.wait()
        unread = self.failures.take_unread()
        if unread is not None:
            raise unread

    @property
    def unsent(self) -> LoggedFrame | None:
        """What was issued and not sent; None if nothing ever was."""
        return LoggedFrame(self.view, self._base, self.ints, self._objects, self.sites) if self.view else None

    @property
    def unacknowledged(self) -> list[LoggedFrame]:
        """What was issued, and perhaps not executed by all ranks."""
        return [*(frame.issued for frame in self._frames), *((self.unsent,) if self.unsent else ())]

    def mended(self, again: Sequence[LoggedFrame] | None = None) -> None:
        """Go on after a failure: what was under way will not be acknowledged.

        Args:
            again: what of it is issued again, before what is not sent yet; None if all of that is dropped, too.
        """
        with self.lock:
            if again is None:
                self._base += len(self.sites)  # no other operations have these numbers
                self.ints, self.sites, self._objects, self.step_begun = [], [], [], None
            self._frames.clear()
            self._num_unacked = 0
            self.failures.forgive()
            self.broken = None
            for frame in again or ():
                self._post(frame, waits=False)
            self.reset_threshold()
