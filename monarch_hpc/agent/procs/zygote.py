"""The zygote: a warm process that procs are forked from, so that they start in milliseconds and share its memory.

It runs no user code except the modules to preload, and has one thread. The agent starts it with a socket; at the
socket's end it ends, after sweeping what the agent may have left behind.

A proc is forked twice; the intermediate process exits at once, so that the kernel reparents the proc to the agent,
which then sees its exit status itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from monarch_hpc.agent.children.environment import proc_environment
from monarch_hpc.agent.children.sweep import cookies, sweep
from monarch_hpc.agent.procs.finalizers import release_globals, wait_for_threads
from monarch_hpc.agent.procs.zygote_order import FDS_PER_PROC, receive, render, versions
from monarch_hpc.agent.resources import binding
from monarch_hpc.agent.resources.shm_folder import remove_segments
from monarch_hpc.core.dataclass import compile_next
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.core.process.dumps import allow_core_dumps, forbid_core_dumps
from monarch_hpc.core.process.imports import uncollected
from monarch_hpc.core.process.parent import continue_at_parents_death
from monarch_hpc.wire.start import MESH_COOKIE, NO_MESH, NO_RUN, RUN_COOKIE, ProcOrder, ProcStart, parse_order

__all__ = ["resolve", "run", "serve"]


_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_PR_SET_NAME = 15
_REPARENT_S = 10.0
_SWEEP_S = 5.0
_NUM_LAST_LINES = 20
_QUIET_MS = 1000
"""Time without a request after which the zygote prepares: the proc that it has just forked needs the cores itself."""
_THREADS_SHARE = 0.2
"""Share of `procs.stop_s` for threads that are not daemons. Actors have had up to `actor.cell.end.CLEANUP_S` before;
atexit handlers and finalizers come after, before the proc is killed."""


def serve(sock: socket.socket, likely_entry: str = "") -> int:
    """Serve one agent until its socket is closed; return the exit status.

    Args:
        likely_entry: loaded before the agent has sent its settings.
    """
    # The agent blocks the signals that it takes by sigwait; they must not stay blocked in procs.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Slurm may send it to all processes of a job, whose agents have time left: this process ends with its agent.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _libc().prctl(_PR_SET_NAME, b"monarch-zygote", 0, 0, 0)
    continue_at_parents_death()
    forbid_core_dumps()  # the procs' keys pass through this process
    with contextlib.suppress(Exception), uncollected():  # it fails again below, where it is reported
        if likely_entry:
            resolve(likely_entry)
            gc.freeze()  # before a collection goes through all of that
    with sock:
        hello = receive(sock)
        if hello is None:
            return 0
        settings = json.loads(hello[0])
        if settings["versions"] != versions():
            wanted, found = " with ".join(settings["versions"]), " with ".join(versions())
            sock.sendall(render({"mismatch": f"is {found}; the program and its hosts are {wanted}"}))
            return 1
        try:
            with uncollected():
                entry = resolve(settings["entry"])
                for module in settings["preload"]:
                    importlib.import_module(module)
        except BaseException:  # noqa: BLE001
            # Whatever a module raises on import must be reported: SystemExit, too.
            sock.sendall(render({"failed": traceback.format_exc().splitlines()[-_NUM_LAST_LINES:]}))
            return 1
        if settings["preload"]:
            gc.collect()  # what users' modules have left; ours leave nothing, and looking for it takes long
        # Objects that exist now are shared with all procs until written to, which the collector would do.
        gc.freeze()
        sock.sendall(render({"ready": True}))
        later = list(getattr(sys.modules[entry.__module__], "LATER", ()))
        while (request := _receive(sock, later)) is not None:
            sock.sendall(render(_serve(sock, *request, settings["agent_pid"], entry, later)))
    # Procs died with the agent, but not their children, which no other process looks for.
    sweep(cookies(settings["allocation"], settings["host"]), _SWEEP_S)
    remove_segments(settings["allocation"], settings["host"])
    return 0


def _receive(sock: socket.socket, later: list[str]) -> tuple[bytes, list[int]] | None:
    """Receive the next request; if none comes for a moment, prepare what each proc would otherwise do again."""
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    if not waiting.poll(_QUIET_MS):
        _prepare(later, lambda: not waiting.poll(0))
    return receive(sock)


def _prepare(later: list[str], goes_on: Callable[[], bool]) -> None:
    """Load the modules *later*, and compile what is left, as long as *goes_on* says so."""
    prepared = False
    while goes_on():
        if later:
            importlib.import_module(later.pop(0))
        elif not compile_next():
            break
        prepared = True
    if prepared:
        gc.freeze()


def _serve(
    sock: socket.socket,
    body: bytes,
    fds: list[int],
    agent_pid: int,
    entry: Callable[[ProcStart], int],
    later: list[str],
) -> dict[str, object]:
    """Fork the procs of one request; return the answer: their pids, or an error."""
    order = parse_order(body)
    if len(order.starts) > 1:  # a single proc is faster without what it may not need
        _prepare(later, lambda: bool(later))
    read, write = os.pipe()
    try:
        try:
            intermediate = os.fork()
        except OSError as error:
            return {"error": f"fork: {error.strerror}"}
        if not intermediate:
            _fork_all(sock, order, fds, (read, write), agent_pid, entry)
        os.waitpid(intermediate, 0)
        os.set_blocking(read, False)
        try:
            answer: dict[str, object] = json.loads(os.read(read, 1 << 16))
        except (BlockingIOError, ValueError):
            return {"error": "the process between zygote and proc died"}
        return answer
    finally:
        for fd in (read, write, *fds):
            os.close(fd)


def _fork_all(
    sock: socket.socket,
    order: ProcOrder,
    fds: list[int],
    pipe: tuple[int, int],
    agent_pid: int,
    entry: Callable[[ProcStart], int],
) -> None:
    """In the intermediate process: fork the procs, report their pids, and exit."""
    pids: list[int] = []
    answer: dict[str, object] = {"pids": pids}
    try:
        for index, start in enumerate(order.starts):
            pid = os.fork()
            if not pid:
                own = fds[index * FDS_PER_PROC : (index + 1) * FDS_PER_PROC]
                for fd in (sock.detach(), *pipe, *(fd for fd in fds if fd not in own)):
                    os.close(fd)
                run(order, start, own, agent_pid, entry)
            pids.append(pid)
    except OSError as error:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        answer = {"error": f"fork: {error.strerror}"}
    os.write(pipe[1], json.dumps(answer).encode())
    os._exit(0)


def run(
    order: ProcOrder, start: ProcStart, fds: Sequence[int], agent_pid: int, entry: Callable[[ProcStart], int]
) -> None:
    """In the proc: set up, run *entry*, and exit without returning.

    Args:
        fds: descriptors of output, errors, hello and recording memory.
        agent_pid: its parent, once the kernel has reparented it.
        entry: returns the exit status, or minus the number of the signal that the process is to die of.
    """
    code = 1
    ours = list(sys.modules.values())
    try:
        out, err, hello, record = fds
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        _set_up(order, start, agent_pid)
        code = entry(dataclasses.replace(start, hello_fd=hello, record_fd=record))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  # the proc's outermost frame: it prints the error and exits
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            wait_for_threads(_THREADS_SHARE * start.procs.stop_s)
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            release_globals(ours)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # Not in a step: a task killed by a signal fails the step, and with it the tasks that still run.
        if code < 0 and not order.in_step:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(max(code, 0) & 0xFF)


def _set_up(order: ProcOrder, start: ProcStart, agent_pid: int) -> None:
    os.setsid()
    # A shell's background jobs ignore the first two, and what nohup starts ignores SIGHUP; so would all their children:
    # neither Ctrl-C nor the end of its terminal would end commands of a shell on this host. A session of its own has no
    # terminal that could hang up on the proc.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    end_s = time.monotonic() + _REPARENT_S
    while os.getppid() != agent_pid:
        if time.monotonic() > end_s:
            raise SystemExit(f"process {agent_pid}, the agent, is not the parent of this proc: it has ended")
        time.sleep(0.0002)
    _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # The name in top. Without a space: Slurm's proctrack/linuxproc would misparse /proc/PID/stat, and kill nothing.
    _libc().prctl(_PR_SET_NAME, f"monarch-r{start.rank:02d}".encode(), 0, 0, 0)
    # For py-spy, a child of the agent, where Yama lets a process be read by its ancestors only; fails without Yama.
    _libc().prctl(_PR_SET_PTRACER, agent_pid, 0, 0, 0)
    if os.getppid() != agent_pid:
        os._exit(1)  # the agent died before PR_SET_PDEATHSIG took effect
    binding.apply(start.cpus, start.memory_nodes)
    _write_cookie(RUN_COOKIE, NO_RUN, start.run)
    _write_cookie(MESH_COOKIE, NO_MESH, str(start.mesh))
    environment = proc_environment(os.environ, order, start)
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(OSError):  # the controller's folder, which a host may not have
        os.chdir(order.cwd)
    os.umask(order.umask)
    allow_core_dumps()
    sys.path[:0] = [path or order.cwd for path in order.sys_path if path not in sys.path]
    sys.argv = [f"proc {start.rank}"]
    # New objects: the zygote's remember that they were opened on a file, and seek.
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    faulthandler.enable(all_threads=False)  # only the faulting thread: few of a dead proc's lines are kept
    if "numpy" in sys.modules:
        # A fork copies the state of numpy's generator: all procs would draw the same numbers.
        importlib.import_module("numpy.random").seed()


def _write_cookie(name: str, placeholder: str, value: str) -> None:
    """Write a cookie of the proc over its placeholder, in the environment that the kernel shows for this process.

    ``/proc/PID/environ`` shows the memory of the last exec, which was the zygote's. With the cookie there, `sweep` can
    attribute to a run, and to a mesh, what a proc forks without exec.
    """
    before = f"{name}=".encode()
    with contextlib.suppress(ValueError, IndexError):
        own = read_stat("self")
        begin, end = own.environ_range if own is not None else (0, 0)
        found = ctypes.string_at(begin, end - begin).find(before + placeholder.encode()) if begin else -1
        if found >= 0:
            text = value.encode().ljust(len(placeholder), b"\0")
            ctypes.memmove(begin + found + len(before), text, len(placeholder))


def resolve(entry: str) -> Callable[[ProcStart], int]:
    """Import the function that procs run, given as ``module:function``."""
    module, _, function = entry.partition(":")
    target: Callable[[ProcStart], int] = getattr(importlib.import_module(module), function)
    return target


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:]))
