"""Submissions for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from monarch_hpc.submitit.submission import Submission

__all__ = ["submission"]


def submission(name: str, **fields: Any) -> Submission:
    """Return a submission of one job with one task, except as *fields* say."""
    plain = Submission(
        id=name,
        folder="/home/alice/log",
        num_jobs=0,
        num_hosts=1,
        tasks_per_host=1,
        cpus_per_task=1,
        gpus_per_host=0,
        memory_bytes=0,
        parallelism=256,
        timeout_s=300.0,
        notice_s=90.0,
        merged=False,
        argv=("/usr/bin/python3",),
        cwd="/home/alice",
        umask=0o022,
        environment="/home/alice/environment.json",
        allocation="dev",
        directory="/home/alice/dev",
        run="5b0000000001",
    )
    return replace(plain, **fields)
