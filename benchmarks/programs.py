"""Programs that `benchmarks.actors` and `benchmarks.seeing_peers` measure, each in its own interpreter.

Installs and finds those interpreters, also for `benchmarks.rdma`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

__all__ = [
    "MEMORY_PACKAGES",
    "PACKAGES",
    "SEEING_PACKAGES",
    "Died",
    "Gone",
    "Program",
    "cache",
    "find_python",
    "install",
]

PACKAGES = {
    "torchmonarch": ["torchmonarch==0.7.0"],
    # With the processes of its dashboard, which `benchmarks.seeing_peers` asks; others do not start them.
    "ray": ["ray[default]==2.60.0"],
    "dragon": ["dragonhpc==0.15.0"],
    "xoscar": ["xoscar==0.12.2"],
    # The wheel for CPUs, if pip is configured with its index; the torch of this environment does as well.
    "torch-rpc": ["torch>=2.4"],
}
"""Packages that pip installs for each peer, besides NumPy."""

MEMORY_PACKAGES = {
    "torchmonarch": PACKAGES["torchmonarch"],
    "ray": PACKAGES["ray"],
    "mpi": ["mpi4py", "mpich"],
    "nixl": ["nixl-cu12==1.5.1"],
}
"""The same for those that `benchmarks.rdma` measures."""

SEEING_PACKAGES = {
    "torchmonarch": PACKAGES["torchmonarch"],
    "ray": PACKAGES["ray"],
    "dask": ["distributed==2026.8.0", "bokeh"],
}
"""The same for those that `benchmarks.seeing_peers` measures."""

_ROOT = Path(__file__).parents[1]
_SHM = Path("/dev/shm")
_START_S = 90.0
_ORDER_S = 60.0
_END_S = 15.0
_PR_SET_CHILD_SUBREAPER = 36


class Gone(Exception):
    """A program cannot be measured, or lacks a feature; the message says why."""


def cache() -> Path:
    """The default folder for the peers' environments."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "monarch-hpc" / "benchmarks"


def find_python(peer: str, folder: Path) -> Path:
    """The interpreter of *peer*: from its environment in *folder*, or this one, which may have torch.

    Raises:
        Gone: *peer* is not installed.
    """
    python = folder / peer / "bin" / "python"
    if python.exists():
        return python
    if peer in ("ours", "torch-rpc"):
        return Path(sys.executable)
    raise Gone("not installed; --install does it")


def install(peer: str, folder: Path) -> None:
    """Make the environment of *peer* in *folder*, if it is missing.

    Raises:
        Gone: pip failed.
    """
    place = folder / peer
    if (place / "installed").exists():
        return
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    argv = [
        str(place / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "numpy",
        *(PACKAGES | MEMORY_PACKAGES | SEEING_PACKAGES)[peer],
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(place)
        raise Gone(f"pip: {_last_line(done.stderr)}")
    (place / "installed").touch()


class Died(Gone):
    """A program died or hung during a measurement; it gets no more orders."""


class Program:
    """A running program, from its start until nothing of it is left.

    Args:
        peer: name of the peer.
        python: its interpreter.
        env: variables to set.
        ends: the package whose end of *peer* it runs.

    Raises:
        Gone: the program did not start.
    """

    def __init__(self, peer: str, python: Path, env: dict[str, str], ends: str = "benchmarks.actor_ends") -> None:
        # Orphans are reparented to this process, so that `close` finds them.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp"))  # short: peers put sockets there
        self._control: socket.socket | None = None
        self._lines: TextIO | None = None
        self._segments = set(_SHM.glob("DD*"))
        try:
            self._start(peer, python, env, ends)
        except BaseException:
            self.close()
            raise

    def _start(self, peer: str, python: Path, env: dict[str, str], ends: str) -> None:
        path = str(self._folder / "control")
        argv = [str(python), "-m", ends]
        if peer == "dragon":  # its launcher takes a file; without -s it requires an allocation on machines with Slurm
            argv = [str(python.parent / "dragon"), "-s", str(_ROOT / "benchmarks" / "actor_ends" / "__main__.py")]
        whole_env = {**os.environ, **env, "PYTHONPATH": str(_ROOT), "TMPDIR": str(self._folder)}
        whole_env["PATH"] = f"{python.parent}:{whole_env['PATH']}"
        # Peers were byte-compiled when they were installed; ours is compiled at its first run, if that is allowed.
        whole_env.pop("PYTHONDONTWRITEBYTECODE", None)
        with socket.socket(socket.AF_UNIX) as control, open(self._folder / "output", "wb") as output:
            control.bind(path)
            control.listen()
            try:
                process = subprocess.Popen(
                    [*argv, peer, path],
                    cwd=self._folder,
                    env=whole_env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            except OSError as error:
                raise Gone(str(error)) from None
            control.settimeout(0.5)
            end_s = time.monotonic() + _START_S
            while self._lines is None:
                try:
                    self._control, _ = control.accept()
                    self._lines = self._control.makefile("rw")
                except TimeoutError:
                    if process.poll() is not None:
                        raise Gone(f"it ended: {self._last_output()}") from None
                    if time.monotonic() > end_s:
                        raise Gone(f"it did not report in {_START_S:.0f} s: {self._last_output()}") from None

    def order(self, what: str, num: int, timeout_s: float = _ORDER_S) -> dict[str, Any]:
        """Send one order, see the package of its ends; return the result.

        Raises:
            Gone: the program cannot do it.
            Died: the program has died, or hangs.
        """
        assert self._lines is not None
        assert self._control is not None
        self._control.settimeout(timeout_s)
        try:
            self._lines.write(json.dumps({"what": what, "num": num}) + "\n")
            self._lines.flush()
            line = self._lines.readline()
        except TimeoutError:
            raise Died(f"no answer in {timeout_s:.0f} s") from None
        except OSError:
            line = ""
        if not line:
            raise Died(f"it died: {self._last_output()}")
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise Gone(str(answer["missing"]))
        return answer

    def _last_output(self) -> str:
        return _last_line((self._folder / "output").read_text(errors="replace"))

    def close(self) -> None:
        """End the program and all its descendants."""
        if self._lines is not None:
            with contextlib.suppress(OSError):
                self._lines.close()
        if self._control is not None:
            self._control.close()
        end_s = time.monotonic() + _END_S
        while _reap() and time.monotonic() < end_s:
            time.sleep(0.02)
        while _reap():
            for pid in _descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for path in set(_SHM.glob("DD*")) - self._segments:  # gigabytes left by Dragon if it was killed
            path.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _reap() -> bool:
    """Reap children that have ended; tell whether others are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants() -> Iterator[int]:
    """All processes below this one."""
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in path.read_text().split()]
                waiting += children
                yield from children
