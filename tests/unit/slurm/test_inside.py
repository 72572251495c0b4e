"""A job that was submitted by other means is recognised by its variables."""

from __future__ import annotations

import pytest

from monarch_hpc.slurm.inside import JobHere, find_job_here

BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_NUM_NODES": "4"}


def test_the_job_is_found() -> None:
    assert find_job_here({**BATCH, "SLURM_NNODES": "1"}) == JobHere(7, "n[1-4]", 4)
    assert find_job_here({**BATCH, "SLURM_CLUSTER_NAME": "big"}) == JobHere(7, "n[1-4]", 4, "big")


def test_older_variables_do() -> None:
    older = {name: value for name, value in BATCH.items() if name != "SLURM_JOB_NUM_NODES"}
    assert find_job_here({**older, "SLURM_NNODES": "4"}) == JobHere(7, "n[1-4]", 4)


@pytest.mark.parametrize("environ", [{}, {"SLURM_CONF": "/x"}, {**BATCH, "SLURM_JOB_ID": "x"}, {"SLURM_JOB_ID": "7"}])
def test_outside_of_a_job_there_is_none(environ: dict[str, str]) -> None:
    assert find_job_here(environ) is None


def test_a_heterogeneous_job_has_the_hosts_of_all_its_components() -> None:
    environ = {
        **BATCH,
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    }
    assert find_job_here(environ) == JobHere(7, "n1,n[2-3]", 3)
    assert find_job_here({**environ, "SLURM_HET_SIZE": "3"}) is None
