"""Measures the first steps of a user, together with floors from the same run.

    python benchmarks/first.py            # this machine only
    python benchmarks/first.py --lab      # also a four-host allocation on a Slurm lab (needs root)

Prints one table. Shared machines are noisy: compare a line with its floor, not with another day's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_NUM_ECHOES = 3000
_NUM_STARTS = 15

_ECHO_PROGRAM = """
import json, sys, time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, text):
        return text

procs = monarch_hpc.hosts().spawn_procs()
one = procs.spawn("echo", Echo).slice(hosts=0)
for _ in range(300):
    one.echo.call_one("x").get()
took = []
for _ in range(int(sys.argv[1])):
    begun = time.perf_counter()
    one.echo.call_one("x").get()
    took.append(time.perf_counter() - begun)
print(json.dumps(sorted(took)[len(took) // 2]))
"""

_FIRST_LINE_PROGRAM = "import time; print(time.time(), flush=True)"


def _median_s(measure: Callable[[], float], num: int = _NUM_STARTS) -> float:
    measure()
    return statistics.median(measure() for _ in range(num))


def _timed_s(argv: list[str]) -> float:
    begun_s = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun_s


def socket_ping_pong_s() -> float:
    """Median round trip of one byte over a loopback TCP socket between two Python processes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if not child:
            with socket.create_connection(server.getsockname()) as echo:
                echo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := echo.recv(64):
                    echo.sendall(data)
            os._exit(0)
        connection, _ = server.accept()
    took = []
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_NUM_ECHOES):
            begun_s = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(64)
            took.append(time.perf_counter() - begun_s)
    os.waitpid(child, 0)
    return statistics.median(took)


def echo_s(command: str, folder: Path) -> float:
    """Median `call_one` echo between the controller and one proc on this machine."""
    program = folder / "echo.py"
    program.write_text(_ECHO_PROGRAM)
    argv = [command, "run", "--local", "1", str(program), str(_NUM_ECHOES)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _row(what: str, value_s: float, floor: str = "", floor_s: float | None = None) -> None:
    unit, scale = ("ms", 1e3) if value_s >= 1e-3 else ("us", 1e6)
    if value_s >= 10:
        unit, scale = "s", 1
    line = f"{what:52}{value_s * scale:9.1f} {unit}"
    if floor_s is not None:
        line += f"   {floor}: {floor_s * scale:.1f} {unit}, ratio {value_s / floor_s:.1f}"
    print(line, flush=True)


def on_this_machine(command: str, folder: Path) -> None:
    """Measure what needs no Slurm."""
    bare = _median_s(lambda: _timed_s([sys.executable, "-c", "pass"]))
    shown = _median_s(lambda: _timed_s([command, "--help"]))
    _row("monarch-hpc --help", shown, "python -c pass", bare)
    floor = socket_ping_pong_s()
    _row("call_one echo, controller to a proc here, p50", echo_s(command, folder), "bare socket ping-pong", floor)


def on_the_lab(folder: Path) -> None:
    """Measure on four hosts of a real Slurm, each in its own namespaces, on this machine."""
    from monarch_hpc.testing.slurmlab import SlurmLab

    command = str(Path(sys.executable).parent / "monarch-hpc")
    with SlurmLab("bench", base=folder / "lab", tied=True) as lab:
        taken = lab.run([command, "alloc", "bench", "-N", "4", "-t", "20"], timeout_s=120)
        if taken.returncode:
            raise SystemExit(taken.stderr)
        seconds = re.findall(r"agents    4/4 in ([\d.]+) s", taken.stderr)
        _row("job RUNNING to ready, 4 hosts", float(seconds[-1]))
        program = lab.home("alice") / "first.py"
        program.write_text(_FIRST_LINE_PROGRAM)
        program.chmod(0o644)

        def to_first_line() -> float:
            begun_s = time.time()
            done = lab.run([command, "run", "-a", "bench", str(program)], timeout_s=60)
            return float(done.stdout) - begun_s

        def bare() -> float:
            begun_s = time.time()
            return float(lab.run([sys.executable, str(program)], timeout_s=60).stdout) - begun_s

        floor = _median_s(bare)
        _row("run on a warm allocation to its first line", _median_s(to_first_line), "python alone", floor)
        lab.run([command, "release", "bench"], timeout_s=60)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", action="store_true", help="also measure an allocation on a Slurm lab; needs root")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        on_this_machine(str(Path(sys.executable).parent / "monarch-hpc"), Path(folder))
        if arguments.lab:
            os.chmod(folder, 0o755)
            on_the_lab(Path(folder))


if __name__ == "__main__":
    main()
