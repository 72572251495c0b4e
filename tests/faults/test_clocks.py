"""The wall clock is set while a program runs: nothing that counts time on it may take that for the passage of time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock_step.c")
_HOUR_S = 3600

PROGRAM = """
import os, sys, time
from pathlib import Path
import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, endpoint
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing.faults import hosts_of

step, library = sys.argv[1:]
failures = []
monarch_hpc.actor.unhandled_fault_hook = failures.append

class Clock(Actor):
    @endpoint
    def ahead(self):
        with open("/proc/uptime") as file:
            return time.time() - float(file.read().split()[0])
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def work(self, duration_s):
        time.sleep(duration_s)

procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2})
clocks = procs.spawn("clock", Clock)
pids, before = clocks.pid.call().get(60).values(), clocks.ahead.call().get(60).values()
directory = Controller.instance().tenancies.all()[0].directory
for host in hosts_of(directory):
    assert library in Path(f"/proc/{host.agent}/maps").read_text()
for seconds in (HOUR, -HOUR, 0):
    under_way = clocks.work.options(timeout=60).call(1.0)
    Path(step).write_text(str(seconds))
    under_way.get(60)
    for one, other in zip(before, clocks.ahead.call().get(60).values()):
        assert abs(other - one - seconds) < HOUR / 2, (one, other, seconds)
    # Longer than a host may be silent, and with calls that have deadlines.
    end_s = time.monotonic() + 4.0
    while time.monotonic() < end_s:
        assert clocks.pid.options(timeout=60).call().get().values() == pids
    with monarch_hpc.hosts().spawn_procs(name="fresh") as fresh:
        fresh.initialized.get(60)
assert failures == []
print("as before")
"""

SETTINGS = {"HEARTBEAT_S": "0.25", "SUSPECT_S": "3", "DEAD_S": "1000", "FENCE_S": "1000"}
"""No host is lost by standing still; one that took an hour for a silence would be."""


@pytest.mark.slow
def test_a_clock_that_is_set_by_an_hour_changes_nothing(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    assert compiler is not None, "a C compiler is needed, as for the package itself"
    library, step, program = tmp_path / "clock_step.so", tmp_path / "step", tmp_path / "program.py"
    define = f'-DSTEP_FILE="{step}"'
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", define, "-o", str(library), str(SOURCE)], check=True)
    step.write_text("0")
    program.write_text(PROGRAM.replace("HOUR", str(_HOUR_S)))
    done = subprocess.run(
        [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "2", str(program), str(step), library.name],
        cwd=tmp_path,
        env={
            **os.environ,
            **{f"MONARCH_HPC_LIVENESS__{key}": value for key, value in SETTINGS.items()},
            "LD_PRELOAD": str(library),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "PYTHONPATH": os.getcwd(),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "as before\n"
    assert "lost" not in done.stderr, done.stderr
