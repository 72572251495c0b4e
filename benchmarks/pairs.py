"""Pairs of processes that `benchmarks.transport` measures; each pair sleeps while another is measured."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from monarch_hpc.config.sections.fabric import TCP_SEGMENT_MAX_BYTES

__all__ = ["Gone", "Pair", "Perftest"]

_PATIENCE_S = 120.0
_ROOT = Path(__file__).parents[1]


class Gone(Exception):
    """A pair cannot be measured; the message says why."""


class Pair:
    """The near and the far process of one row.

    Args:
        cpus: a core for each process, or None.
    """

    def __init__(self, row: str, cpus: tuple[int, int] | None) -> None:
        self._row = row
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: dict[str, TextIO] = {}
        self._key = ""
        try:
            self._start(",".join(map(str, cpus)) if cpus else "")
            for side in ("near", "far"):
                self._answer(side)
            address = self._order("far", what="open", key="")["address"]
            self._order("near", what="open", key=address)
        except BaseException:
            self.close()
            raise

    def _start(self, cpus: str) -> None:
        path = str(self._folder / "control")
        with socket.socket(socket.AF_UNIX) as control:
            control.bind(path)
            control.listen()
            control.settimeout(_PATIENCE_S)
            argv = [sys.executable, "-m", "benchmarks.ends", self._row]
            if self._row.startswith("mpi-"):
                self._launch([*_mpirun(self._row.removeprefix("mpi-")), *argv, "rank", path, cpus])
            else:
                for side in ("near", "far"):
                    self._launch([*argv, side, path, cpus])
            while len(self._lines) < 2:
                try:
                    end, _ = control.accept()
                except TimeoutError:
                    raise Gone(f"its processes did not report: {self._last_line()}") from None
                end.settimeout(_PATIENCE_S)
                lines = end.makefile("rw")
                self._lines[json.loads(lines.readline())["side"]] = lines

    def _launch(self, argv: list[str]) -> None:
        stderr = open(self._folder / "stderr", "ab")
        with stderr:
            self._processes.append(
                subprocess.Popen(argv, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
            )

    def _answer(self, side: str) -> dict[str, float]:
        try:
            line = self._lines[side].readline()
        except TimeoutError:
            raise Gone(f"the {side} end did not answer in {_PATIENCE_S:.0f} s") from None
        if not line:
            raise Gone(f"the {side} end died: {self._last_line()}")
        answer: dict[str, float] = json.loads(line)
        if "missing" in answer:
            raise Gone(str(answer["missing"]))
        return answer

    def _order(self, side: str, what: str, num: int = 0, nbytes: int = 0, key: object = "") -> dict[str, float]:
        self._send(side, what, num, nbytes, key)
        return self._answer(side)

    def _send(self, side: str, what: str, num: int, nbytes: int, key: object) -> None:
        order = {"what": what, "num": num, "nbytes": nbytes, "key": key}
        try:
            self._lines[side].write(json.dumps(order) + "\n")
            self._lines[side].flush()
        except OSError:
            raise Gone(f"the {side} end died: {self._last_line()}") from None

    def _last_line(self) -> str:
        text = (self._folder / "stderr").read_text(errors="replace").strip()
        return text.rpartition("\n")[2] or "no output"

    def measure(self, what: str, num: int, nbytes: int) -> dict[str, float]:
        """Let both ends do their part; return the near end's result, and the CPU time of both if it moves bytes.

        Raises:
            Gone: the pair broke, or cannot do this.
        """
        if what not in ("pour", "fetch", "store"):
            return self._measure(what, num, nbytes)
        before_s = self._cpu_s()
        found = self._measure(what, num, nbytes)
        return {**found, "cpu": self._cpu_s() - before_s}

    def _cpu_s(self) -> float:
        return sum(self._order(side, "cpu")["value"] for side in ("near", "far"))

    def _measure(self, what: str, num: int, nbytes: int) -> dict[str, float]:
        if what in ("fetch", "store"):
            key = self._order("far", "hold", nbytes=nbytes)["key"]
            if not key:
                raise Gone("no such thing")
            return self._order("near", what, num, nbytes, key)
        self._send("far", what, num, nbytes, "")
        found = self._order("near", what, num, nbytes)
        answered = self._answer("far")
        if what == "idle":
            found["value"] = max(found["value"], answered["value"])
        return found

    def close(self) -> None:
        """End both processes."""
        for lines in self._lines.values():
            with contextlib.suppress(OSError):
                lines.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _mpirun(transport: str) -> list[str]:
    found = shutil.which("mpirun")
    if found is None:
        raise Gone("mpirun is not installed here")
    argv = [found, "-n", "2", "--oversubscribe", "--bind-to", "none", "--mca", "btl_base_warn_component_unused", "0"]
    argv += ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp" if transport == "tcp" else "self,vader"]
    if transport == "tcp":
        argv += ["--mca", "btl_tcp_if_include", "lo"]
    return [*argv, "--allow-run-as-root"] if os.geteuid() == 0 else argv


class Perftest:
    """UCX's own benchmark, in C, configured like our binding: with error handling for the death of a peer.

    Args:
        transport: ``shm``; ``private``, likewise for memory that UCX has not made shared; or ``tcp``.
    """

    def __init__(self, transport: str, cpus: tuple[int, int] | None) -> None:
        found = shutil.which("ucx_perftest")
        if found is None:
            raise Gone("ucx_perftest is not installed here: apt-get install --no-install-recommends ucx-utils")
        self._command = found
        self._cpus = cpus
        self._environment = {
            **os.environ,
            "UCX_TLS": "tcp,self" if transport == "tcp" else "posix,cma,self",
            "UCX_NET_DEVICES": "lo",
            "UCX_TCP_TX_SEG_SIZE": str(TCP_SEGMENT_MAX_BYTES),
            "UCX_TCP_RX_SEG_SIZE": str(TCP_SEGMENT_MAX_BYTES),
            "UCX_POSIX_ERROR_HANDLING": "y",
            "UCX_WARN_UNUSED_ENV_VARS": "n",
            **({"UCX_ALLOC_PRIO": "mmap,heap"} if transport == "private" else {}),
        }

    def measure(self, what: str, num: int, nbytes: int) -> dict[str, float]:
        """As `Pair.measure`, but with the median as the only percentile."""
        test = {"ping": "ucp_am_lat", "pour": "ucp_am_bw", "fetch": "ucp_get", "store": "ucp_put_bw"}.get(what)
        if test is None:
            raise Gone("no such thing")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        near_cpu, far_cpu = self._cpus or (None, None)
        server = self._start(far_cpu, ["-p", port])
        try:
            argv = ["127.0.0.1", "-p", port, "-t", test, "-e", "-s", str(nbytes), "-n", str(num), "-w", "2", "-f", "-v"]
            for _ in range(50):  # until the server listens
                client = self._start(near_cpu, argv)
                output, _ = client.communicate(timeout=_PATIENCE_S)
                fields = output.strip().rpartition("\n")[2].split(",")
                if client.returncode == 0 and len(fields) == 8:
                    break
            else:
                raise Gone(f"ucx_perftest printed {output.strip()[-100:]!r}")
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
            raise Gone(f"ucx_perftest did not end in {_PATIENCE_S:.0f} s") from None
        finally:
            server.kill()
            server.wait()
        # It reports half of a round trip, and the time of a message from the first to the last, in microseconds. Its
        # rates are whole numbers: that of messages of 256 MiB has a digit or none.
        return {"value": 2e-6 * float(fields[1]) if what == "ping" else 1e-6 * num * float(fields[3])}

    def _start(self, cpu: int | None, argv: list[str]) -> subprocess.Popen[str]:
        pinned = [] if cpu is None else ["-c", str(cpu)]
        return subprocess.Popen(
            [self._command, *argv, *pinned],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def close(self) -> None:
        """Do nothing: no process is left running."""
