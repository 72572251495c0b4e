"""Workers started by hand on machines of their own, with a program on a third one."""

from __future__ import annotations

import functools
import signal
import sys

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, write
from tests.system.support.programs import PATIENCE_S

__all__ = ["alice"]

WORKER = """
import sys
from monarch_hpc.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1])
"""

PROGRAM = """
from monarch_hpc.actor import Actor, attach_to_workers, context, current_rank, endpoint

class Where(Actor):
    @endpoint
    def where(self): return context().proc.host

class Asker(Actor):
    @endpoint
    def ask(self, others): return others.slice(hosts=1 - current_rank()["hosts"]).where.call_one().get()

hosts = attach_to_workers(ca="trust_all_connections", workers=["tcp://n1:24444", "tcp://n2:24444"])
procs = hosts.spawn_procs()
actors = procs.spawn("where", Where)
print(list(actors.where.call().get().values()))
# Procs of one machine call those of the other.
print("crosswise", list(procs.spawn("asker", Asker).ask.call(actors).get().values()))
"""


def test_workers_on_two_machines_serve_a_program_on_a_third(alice: Alice) -> None:
    script = write(alice, "worker.py", WORKER)
    program = write(alice, "program.py", PROGRAM)
    workers = [
        alice.lab.popen(
            [sys.executable, script, f"tcp://{host}:24444"], host=host, env=alice.environment({}), folder=alice.folder
        )
        for host in ("n1", "n2")
    ]
    try:
        for _ in range(2):
            done = alice.lab.run([sys.executable, program], env=alice.environment({}), timeout_s=2 * PATIENCE_S)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "['n1', 'n2']" in done.stdout and "crosswise ['n2', 'n1']" in done.stdout
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=PATIENCE_S)
    for host in ("n1", "n2"):
        wait_until(f"nothing of hers on {host}", functools.partial(alice.lab.processes, "alice", host), accept=_nothing)


def _nothing(found: object) -> bool:
    return not found
