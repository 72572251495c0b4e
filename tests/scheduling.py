"""Division of the test files among the processes of pytest-xdist: files that wait run beside files that compute."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["WaitingBesideBusy"]

# What decides how long these take are intervals and deadlines, of Slurm or of agents, more than processors.
WAITING = ("tests/slurm/", "tests/system/agent/", "tests/system/hosts/", "tests/system/job/")
# Those that take more than a minute, the longest first: begun last, one of them would run alone at the end.
LONG = (
    "tests/system/programs/test_examples.py",
    "tests/slurm/test_heirs.py",
    "tests/guards/test_docs.py",
    "tests/slurm/test_grow.py",
    "tests/slurm/test_causes.py",
    "tests/system/transport/test_conformance.py",
    "tests/slurm/test_trainings.py",
    "tests/slurm/test_alloc.py",
    "tests/system/procs/test_leftovers.py",
    "tests/system/hosts/test_heirs.py",
    "tests/slurm/test_runs.py",
    "tests/system/tensor/test_healing_tensors.py",
    "tests/slurm/test_readme.py",
    "tests/slurm/test_own_job.py",
    "tests/faults/test_failpoints.py",
    "tests/system/cli/test_run.py",
    "tests/system/cli/test_kept_meshes.py",
    "tests/slurm/test_salloc.py",
    "tests/slurm/test_links.py",
    "tests/slurm/test_hosts.py",
    "tests/system/hosts/test_rejoin.py",
    "tests/slurm/test_kept_meshes.py",
    "tests/slurm/test_lab.py",
    "tests/unit/attach/tables/test_sql.py",
    "tests/property/test_hostile.py",
    "tests/guards/test_packaging.py",
    "tests/system/calls/test_backpressure.py",
    "tests/slurm/test_returns.py",
    "tests/system/hosts/test_workers.py",
    "tests/slurm/test_submitit.py",
    "tests/slurm/test_ghosts.py",
    "tests/slurm/test_chaos.py",
    "tests/slurm/test_kill_alloc.py",
    "tests/slurm/test_other_users.py",
    "tests/slurm/test_batch.py",
)
# Those of its files that are not long run in one process, which parses all modules once.
TREE = "tests/guards/"
# One for each core of the smallest machine in use.
NUM_BUSY = 2


class WaitingBesideBusy(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """The tests of a file stay together, and those of `TREE`; `NUM_BUSY` processes begin with files that compute.

    The others begin with files that wait. Each begins with the longest of its files.

    With one queue for all, at one time more processes compute than there are cores, and tests with a time limit
    fail; at another all wait.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        busy = self._is_busy(node)
        files = [*(file for file in LONG if file in self.workqueue), *self.workqueue]
        first = next((file for file in files if file.startswith(WAITING) is not busy), files[0])
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        # After a crash, what is left of its file comes back when the others may have been told that nothing follows.
        alone = not any(self._is_busy(other) and not other.shutting_down for other in self.nodes)
        if self._is_busy(node) or alone or any(file.startswith(WAITING) for file in self.workqueue):
            super()._reschedule(node)
        else:
            node.shutdown()

    def remove_node(self, node: WorkerController) -> str | None:
        """Take the work of a process back; of one that crashed without the test that ended it, which is returned."""
        work = self.assigned_work.pop(node)
        left = [(tests, test) for tests in work.values() for test, done in tests.items() if not done]
        if not left:
            return None
        tests, crashed = left[0]
        tests[crashed] = True  # or it would end the next process, too
        self.workqueue.update({file: tests for file, tests in work.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        found: str = crashed
        return found

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return TREE if file.startswith(TREE) and file not in LONG else file

    def _is_busy(self, node: WorkerController) -> bool:
        # By position, not by name: another process takes the place of one that has crashed.
        position: int = self.nodes.index(node)
        return position < NUM_BUSY
