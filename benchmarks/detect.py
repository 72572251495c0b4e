"""Measures how soon callers learn of a death, beside torchmonarch, Ray and xoscar in the same run.

    python -m benchmarks.actors --install --peers torchmonarch ray xoscar    # once
    python -m benchmarks.detect                     # processes of this machine
    python -m benchmarks.detect --lab               # and hosts: power and cable (needs root)
    python -m benchmarks.detect --peers none

From the fault until a call under way in the process, or on the host, fails: p50 and p99 of the deaths, in ms. A peer
that has not noticed after 90 s is said not to have.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.programs import Died, Gone, Program, cache, find_python
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab import HostProcess, SlurmLab

_PEERS = ("torchmonarch", "ray", "xoscar")
_ON_HOSTS = ("torchmonarch", "ray")
_PATIENCE_S = 90.0
_START_S = 120.0
_SPAWN_S = 10.0
"""Of a peer's process, on a busy machine."""
_PROGRAM = Path(__file__).with_name("detect_end.py")
_PORT = 26379
_PROCESS_FAULTS = {"SIGKILL": "kill", "segfault": "segfault", "os._exit": "exit", "SIGSTOP": "stop-process"}
_VICTIM = "n2"


def _show(fault: str, peer: str, words: str) -> None:
    print(f"{fault:12}{peer:14}{words}", flush=True)


def of_processes(peer: str, python: Path, num: int, num_slow: int) -> None:
    """Measure the deaths of procs, in a fresh program for each kind: some peers do nothing more after a stopped one."""
    for fault, order in _PROCESS_FAULTS.items():
        try:
            with Program(peer, python, {}) as program:
                program.order("start", 1)
                slow = order == "stop-process" or peer == "torchmonarch"
                count = num_slow if slow else num
                found = program.order(order, count, _PATIENCE_S * (count if slow else 1) + _SPAWN_S * count)
            _show(fault, peer, f"p50 {1e3 * found['p50']:8.0f} ms   p99 {1e3 * found['p99']:8.0f} ms")
        except Died:
            _show(fault, peer, f"not noticed in {_PATIENCE_S:.0f} s")
        except Gone as error:
            _show(fault, peer, str(error))


# ---- hosts of a lab ----


@contextlib.contextmanager
def _ours(lab: SlurmLab, _python: Path) -> Iterator[tuple[str, list[str]]]:
    command = str(Path(sys.executable).with_name("monarch-hpc"))
    lab.run([command, "alloc", "detect", "-N", "2", "-w", f"n1,{_VICTIM}"], timeout_s=_START_S, check=True)
    try:
        yield "", [command, "run", "-a", "detect"]
    finally:
        lab.run([command, "release", "--all"], timeout_s=_START_S)


@contextlib.contextmanager
def _ray(lab: SlurmLab, python: Path) -> Iterator[tuple[str, list[str]]]:
    here, there = lab.address("login"), lab.address(_VICTIM)
    command, env = str(python.with_name("ray")), {"RAY_USAGE_STATS_ENABLED": "0"}
    own = ["--block", "--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats"]
    head = [command, "start", "--head", f"--node-ip-address={here}", f"--port={_PORT}", *own]
    head += ["--include-dashboard=false"]
    worker = [
        command,
        "start",
        f"--address={here}:{_PORT}",
        f"--node-ip-address={there}",
        "--resources",
        '{"victim": 1}',
    ]
    with _background(lab, head, "login", env), _background(lab, [*worker, *own], _VICTIM, env):
        yield f"{here}:{_PORT}", [str(python)]


@contextlib.contextmanager
def _torchmonarch(lab: SlurmLab, python: Path) -> Iterator[tuple[str, list[str]]]:
    address = f"tcp://{lab.address(_VICTIM)}:{_PORT}"
    text = (
        "from monarch.actor import run_worker_loop_forever\n"
        f"run_worker_loop_forever(address={address!r}, ca='trust_all_connections')\n"
    )
    with _background(lab, [str(python), "-c", text], _VICTIM, {}):
        yield address, [str(python)]


@contextlib.contextmanager
def _background(lab: SlurmLab, argv: list[str], host: str, env: dict[str, str]) -> Iterator[None]:
    process = lab.popen(argv, host=host, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


_STARTS = {"ours": _ours, "ray": _ray, "torchmonarch": _torchmonarch}


def of_hosts(lab: SlurmLab, peer: str, python: Path) -> None:
    """Measure the loss of a host by power and by its cable."""
    faults: dict[str, Callable[[str], None]] = {"host off": lab.kill_host, "cable": lab.link_down}
    for name, inflict in faults.items():
        with _STARTS[peer](lab, python) as (address, argv):
            _show(name, peer, _measure(lab, [*argv, str(lab.home() / _PROGRAM.name), peer, address], inflict))
        lab.reset(180.0)


def _measure(lab: SlurmLab, argv: list[str], inflict: Callable[[str], None]) -> str:
    process = lab.popen(argv, stderr=subprocess.DEVNULL)
    try:
        lines = _Lines(process)
        begun = lines.next(_START_S)
        if not begun:
            return f"it did not start in {_START_S:.0f} s"
        time.sleep(1)  # until the call is under way
        at_s = time.monotonic()
        inflict(_VICTIM)
        end = lines.next(_PATIENCE_S)
        return f"{float(end.split()[1]) - at_s:8.1f} s" if end else f"not noticed in {_PATIENCE_S:.0f} s"
    finally:
        process.kill()
        process.wait()


class _Lines:
    """The lines of a process, read on a thread, as a peer may print nothing for ever."""

    def __init__(self, process: HostProcess) -> None:
        self._process = process
        self._read: list[str] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("begun", "ended")):  # peers print there, too
                self._read.append(line.strip())

    def next(self, timeout_s: float) -> str:
        """Return the next line, empty if there is none in time."""
        with contextlib.suppress(TimeoutError):
            wait_until("a line", lambda: self._read or self._process.poll() is not None, timeout_s, interval_s=0.01)
        return self._read.pop(0) if self._read else ""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=(*_PEERS, "none"), default=list(_PEERS), metavar="PEER")
    parser.add_argument("--num", type=int, default=100, help="deaths of each kind: %(default)s")
    parser.add_argument("--num-slow", type=int, default=2, help="of those that take seconds: %(default)s")
    parser.add_argument("--lab", action="store_true", help="also hosts, of a Slurm lab; needs root")
    parser.add_argument("--venvs", type=Path, default=cache(), metavar="DIR", help="folder of peers: %(default)s")
    arguments = parser.parse_args()
    pythons = {"ours": Path(sys.executable)}
    for peer in arguments.peers:
        if peer != "none":
            try:
                pythons[peer] = find_python(peer, arguments.venvs)
            except Gone as error:
                print(f"{peer}: {error}")
    for peer, python in pythons.items():
        of_processes(peer, python, arguments.num, arguments.num_slow)
    if arguments.lab:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            with SlurmLab("detect", base=Path(folder) / "lab", share=[arguments.venvs], tied=True) as lab:
                copy = lab.home() / _PROGRAM.name
                copy.write_text(_PROGRAM.read_text())
                copy.chmod(0o644)
                for peer in ("ours", *_ON_HOSTS):
                    if peer in pythons:
                        of_hosts(lab, peer, pythons[peer])


if __name__ == "__main__":
    main()
