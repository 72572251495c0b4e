"""The object of one actor: made by its constructor, and cleaned up at its end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from monarch_hpc.actor.cell.coroutines import Coroutines
from monarch_hpc.actor.cell.endpoint_table import EndpointTable
from monarch_hpc.actor.cell.recording import CellRecorder
from monarch_hpc.actor.context import Context, ProcInfo, set_context
from monarch_hpc.actor.fault import print_error
from monarch_hpc.actor.messages.payload import Spawned
from monarch_hpc.core.text.description import trace_of
from monarch_hpc.wire.frames import Frame
from monarch_hpc.wire.serializer import loads

__all__ = ["ActorObject"]


class ActorObject:
    """Runs the constructor and the hooks of one actor; used on its thread.

    Args:
        where: the actor in words.
        spawned, frame: what it is made of, and the frame that this came in.

    Attributes:
        on_loop: whether constructor and hooks run on the loop, as all endpoints do.
        context: the current context; None before the constructor, and where a hook has entered another one.
        cleaned: whether `clean_up` has been called.
    """

    __slots__ = ("_coroutines", "_entries", "_info", "_made", "_records", "_where", "cleaned", "context", "on_loop")

    def __init__(
        self,
        where: str,
        info: ProcInfo,
        spawned: Spawned,
        frame: Frame,
        entries: EndpointTable,
        records: CellRecorder,
        coroutines: Coroutines,
    ) -> None:
        self.on_loop = False
        self.context: Context | None = None
        self.cleaned = False
        self._where = where
        self._info = info
        self._made: tuple[Spawned, Frame] | None = spawned, frame
        self._entries = entries
        self._records = records
        self._coroutines = coroutines

    def construct(self) -> None:
        """Unpack class and arguments, and call the constructor, once; raises what user code raises."""
        assert self._made is not None, "the object is made once"
        spawned, frame = self._made
        self._made = None  # the packed arguments are dropped with this call
        unpacked: Any = loads(spawned.made, frame.buffers, in_turn=True)
        cls, args, kwargs = unpacked
        entries = self._entries
        self.enter(entries.begin(spawned, cls, self._info, frame.dest))
        methods = entries.endpoints.values()
        self.on_loop = bool(methods) and all(method.is_async for method in methods)
        entries.target = self._call(cls, *args, **kwargs)
        self._records.ready()

    def enter(self, context: Context) -> None:
        """Make *context* the current one."""
        self.context = context
        set_context(context)

    def _call(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        if self.on_loop or inspect.iscoroutinefunction(function):
            return self._coroutines.call(lambda: function(*args, **kwargs))
        return function(*args, **kwargs)

    @property
    def needs_clean_up(self) -> bool:
        """Whether it has a `__cleanup__`, or owns something."""
        hook = inspect.getattr_static(self._entries.target, "__cleanup__", None)
        return hook is not None or bool(self._entries.resources)

    def clean_up(self, error: BaseException | None) -> None:
        """Call `__cleanup__` with *error*, close what the actor owns and its loop, and release the object."""
        entries = self._entries
        self.cleaned = True
        if entries.base_context is not None and entries.target is not None:
            self.enter(entries.base_context)
            try:
                hook = getattr(entries.target, "__cleanup__", None)
                if hook is not None:
                    self._call(hook, error)
            except BaseException as another:  # noqa: BLE001 user code; the actor ends all the same
                print_error(f"{self._where}: its __cleanup__ failed:\n{trace_of(another)}")
        entries.close_resources(self._where)
        self._coroutines.close(self._where)
        entries.close()
