"""Fixtures for all tests: an empty home, no variables of the site, and a check for leaked resources."""

from __future__ import annotations

import compileall
import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

# The tests start thousands of interpreters. Where the shell forbids bytecode files, as in many containers, each would
# compile our modules again: half of the CPU time of a program with its agent and procs. Before the first import of
# hypothesis, whose modules pytest would rewrite in each worker, for four seconds of a processor.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import hypothesis  # noqa: E402
import pytest  # noqa: E402

import monarch_hpc  # noqa: E402

# Before its first import, so that failed assertions of the suite say as much as those of test modules.
pytest.register_assert_rewrite("monarch_hpc.testing.conformance")

# The same examples on every run, so that failures are reproducible; no deadline, since slowness is not a failure.
hypothesis.settings.register_profile("house", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("house")

# The programs of several tests share few cores: with a thread for each core, the threads of torch in one process would
# spin until others, which wait for a core, have ended their part. That is three quarters of the CPU time of an example.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Time that the kernel may take to end a killed process.
_SETTLE_S = 30.0 * float(os.environ.get("PATIENCE") or 1)

# Four times what the slowest took at a load of 20. A test that hangs is a failure then, and the others go on.
_MOST_S = 480.0 * float(os.environ.get("PATIENCE") or 1)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the package before all workers start: users of a lab cannot write into its folders.

    A shell lets what it starts in the background ignore Ctrl-C; tests, and what they start, heed it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(session.config, "workerinput"):
        compileall.compile_dir(monarch_hpc.__path__[0], quiet=2)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Keep garbage collections away, a quarter of the time, and let each of several workers begin with other files.

    The first import of a file takes long, since pytest rewrites its assertions; all workers, which collect the same
    files, would do it at the same time.
    """
    gc.disable()
    worker: Mapping[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    folders = [path for path in map(Path, session.config.args) if path.is_dir()]
    files = sorted({file.resolve() for folder in folders for file in folder.rglob("test_*.py")})
    number = int(worker["workerid"].removeprefix("gw")) % worker["workercount"]
    for file in files[number :: worker["workercount"]]:
        name = ".".join(file.relative_to(session.config.rootpath).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection imports it again, and tells of it
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    """Spare each of the tests' garbage collections the half a million objects that collection made."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from tests.scheduling import WaitingBesideBusy  # pytest-xdist need not be installed for a single process

    return WaitingBesideBusy(config, log)


@contextlib.contextmanager
def ending_alone() -> Iterator[None]:
    """Fail the test that hangs or interrupts itself, instead of the whole run or its worker process.

    The signals that it blocks are open again at its end.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        pytest.fail(f"hangs: not over after {_MOST_S:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    # Again and again: what cleans up after the test may hang as well.
    signal.setitimer(signal.ITIMER_REAL, _MOST_S, _MOST_S)
    try:
        yield
    except KeyboardInterrupt as error:
        # A worker takes none from the keyboard: pytest's main process does, and ends its workers.
        if "PYTEST_XDIST_WORKER" not in os.environ:
            raise
        raise RuntimeError("SIGINT came when the test did not expect it") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        # A command that a test runs in this process takes some by sigwait: what later tests start would inherit that.
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    with ending_alone():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with ending_alone():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    with ending_alone():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give all tests an empty home, and remove variables of the shell or site for Slurm and monarch-hpc."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("MONARCH_HPC_", "SBATCH_", "SLURM_", "XDG_")):
                patch.delenv(name)
        patch.setenv("HOME", str(home))
        yield


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a child process, a thread or an open file behind."""
    before = held()
    yield
    end_s = time.monotonic() + _SETTLE_S
    while (left := held() - before) and time.monotonic() < end_s:
        gc.collect()  # closes files held by reference cycles
        ucx = sys.modules.get("monarch_hpc.transport.ucx._ucx")
        if ucx is not None:
            ucx.num_abandoned()  # ends UCX workers whose peers have answered or died meanwhile
        time.sleep(0.01)
    assert not left, f"left behind: {sorted(left)}"


def held() -> set[str]:
    """The child processes, threads and open files of this process."""
    children = {
        f"child process {pid}" for task in Path("/proc/self/task").iterdir() for pid in _read(task / "children").split()
    }
    # One that Python did not start gets a name, such as Dummy-1, once it logs something: that is no other thread.
    named = {one.ident: one.name for one in threading.enumerate() if not one.name.startswith("Dummy-")}
    threads = {f"thread {named.get(ident) or _work_of(frame)}" for ident, frame in sys._current_frames().items()}
    return children | threads | {f"open {name}" for name in _open_files()}


def _work_of(frame: FrameType) -> str:
    """The function that a thread without a name has begun with, but for that of our own class of threads."""
    work = frame
    while frame.f_back is not None:
        work, frame = frame, frame.f_back
    return work.f_code.co_qualname


def _open_files() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        # Libraries keep devices such as /dev/urandom open until the process exits.
        if not target.startswith("/dev/"):
            yield f"{entry.name} -> {target}"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
