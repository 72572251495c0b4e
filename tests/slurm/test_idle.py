"""Allocations that nothing uses: their heads give them back, whatever has become of the login side."""

from __future__ import annotations

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, kill_all_on_login, wait_until_left

__all__ = ["alice"]

SOON = {"MONARCH_HPC_SLURM__IDLE_MIN": "0.5"}
"""30 seconds: long enough to see it ready, on a machine that is busy."""


def test_unused_hosts_go_back_by_themselves(alice: Alice) -> None:
    done = alice.run("alloc", "dev", "-N", "4", env=SOON)
    assert done.returncode == 0, done.stderr
    assert "unused    for 30 s without a run or a program, it is released by itself" in done.stderr
    kill_all_on_login(alice)
    wait_until("the end of the job", alice.jobs, 120.0, accept=lambda jobs: not jobs)
    wait_until_left(alice)
    (shown,) = alice.status("dev")
    assert shown["state"] == "ended: RELEASED: no run and no program for 30 s (config key 'slurm.idle_min')"
    assert "it is released in 15 s unless one does" in alice.run("logs", "dev", "--agents").stdout
