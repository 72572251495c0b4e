"""Ends the threads and runs the finalizers of module globals before a proc exits, as the interpreter would.

A proc leaves by `os._exit`: its frames are the zygote's, whose clean-up must not run in it. What users keep in globals
of their modules, such as open files and objects with `__del__`, is released here instead. The interpreter first waits
for threads that are not daemons, and daemons run no more while it releases; so it is here, as far as threads can be
stopped from Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Collection, Iterable
from types import FrameType, ModuleType

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.process.native_threads import thread_frames

__all__ = ["release_globals", "wait_for_threads"]

_OURS = __name__.partition(".")[0]
_LIBRARIES = ("/site-packages/", "/dist-packages/")


def wait_for_threads(limit_s: float) -> None:
    """Wait for the threads that are not daemons, and for what executors have queued, *limit_s* seconds at most."""
    end_s = monotonic() + limit_s
    if _lasting():
        # On a thread: what threads of executors have begun has no time limit.
        ender = threading.Thread(target=_end_executors, name="monarch-shutdown", daemon=True)
        ender.start()
        ender.join(limit_s)
    while (threads := _lasting()) and (left_s := end_s - monotonic()) > 0:
        threads[0].join(left_s)


def _lasting() -> list[threading.Thread]:
    main = threading.main_thread()
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]


def _end_executors() -> None:
    # The interpreter calls these functions first of all; there is no other access to them.
    for end in reversed(vars(threading)["_threading_atexits"]):
        end()


def release_globals(kept: Iterable[object]) -> None:
    """Clear the globals of all modules that were imported from users' files, the latest first.

    Libraries keep theirs: they release their own at exit, and users' finalizers may need them. Threads that run code of
    these modules end silently: at once, or when the call into C returns in which they wait.

    Args:
        kept: modules to keep: those that were there before user code ran, perhaps under other names.
    """
    ours = {id(module) for module in kept}
    released = [
        module for name, module in list(sys.modules.items()) if id(module) not in ours and _is_users(name, module)
    ]
    if released:
        _end_threads([vars(module) for module in released])
    for module in reversed(released):
        found = vars(module)
        for name in reversed(list(found)):
            if not (name.startswith("__") and name.endswith("__")):
                # One by one, and set to None: functions of the module may run meanwhile, and find their other globals.
                found[name] = None
    if released:
        gc.collect()


def _end_threads(namespaces: Iterable[dict[str, object]]) -> None:
    """Raise SystemExit in the threads that run functions with these globals; show no exception of any thread."""
    # Clean-up code on the way out of these threads may find its globals gone; the interpreter would not even run it.
    threading.excepthook = lambda _args: None
    ours = {id(namespace) for namespace in namespaces}
    for ident, frame in thread_frames().items():
        if ident != threading.get_ident() and _runs(frame, ours):
            with contextlib.suppress(Exception):
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))


def _runs(frame: FrameType | None, namespaces: Collection[int]) -> bool:
    while frame is not None:
        if id(frame.f_globals) in namespaces:
            return True
        frame = frame.f_back
    return False


def _is_users(name: str, module: object) -> bool:
    if not isinstance(module, ModuleType) or name.partition(".")[0] == _OURS:
        return False
    path = vars(module).get("__file__")
    if not isinstance(path, str) or any(folder in path for folder in _LIBRARIES):
        return False
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return not path.startswith(tuple(f"{prefix}/lib" for prefix in prefixes))
