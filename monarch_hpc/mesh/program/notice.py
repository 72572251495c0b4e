"""The time that a program has left, and notice of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from monarch_hpc.mesh.program.deadline import DeadlineHook

__all__ = ["on_deadline", "seconds_left"]

_Hook = TypeVar("_Hook", bound="DeadlineHook")


def on_deadline(hook: _Hook) -> _Hook:
    """Have *hook* called with ``(seconds_left, cause)`` when an allocation of this program ends soon.

    It runs on a thread of its own, where it may call actors and wait, e.g. to write a checkpoint; hooks run one after
    the other, in the order in which they were given. One that raises is logged, and the others run. The cause is:

    - ``"time limit"``: the job ends in `seconds_left`; notice comes ``slurm.notice_s`` before that, or when half of a
      short job is over, and again after an extension.
    - ``"SIGTERM"``: Slurm preempts or cancels the job, or ends it for another reason. The allocation's processes end
      when all hooks have returned, or when `seconds_left` are over: some seconds before Slurm kills them.

    Call it in the program, on its main thread: within a Slurm job it keeps SIGTERM from ending the program before the
    hooks have run, unless the program handles that signal itself; after them it ends by `SystemExit`. It can be used as
    a decorator.

    Returns:
        *hook*.

    Raises:
        RuntimeError: this is a proc, not the program.
    """
    from monarch_hpc.mesh.program.controller import Controller

    if not callable(hook):
        raise TypeError(f"on_deadline takes a function of (seconds_left, cause), not {hook!r:.80}")
    Controller.instance().deadline.add(hook)
    return hook


def seconds_left() -> float | None:
    """The seconds until Slurm ends the first of the program's allocations; None if none has a known end.

    A program that uses no allocation yet gets the one that `hosts` would give it.

    Raises:
        AllocationError, VersionMismatch: as for `hosts`.
        RuntimeError: this is a proc, not the program.
    """
    from monarch_hpc.mesh.program.controller import Controller

    controller = Controller.instance()
    if not controller.tenancies.all():
        controller.tenancies.default()
    return controller.deadline.seconds_left()
