from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.config import FlagValue
from monarch_hpc.slurm.commands.salloc import find_salloc_job, read_salloc_refusal, salloc_flags


def test_flags_of_batch_scripts_are_left_out() -> None:
    flags: dict[str, FlagValue] = {
        "job-name": "mh-1",
        "output": "x",
        "signal": "B:USR2@360",
        "no-requeue": True,
        "exclusive": True,
    }
    assert salloc_flags(flags) == {"job-name": "mh-1", "exclusive": True}


@pytest.mark.parametrize(
    ("words", "job_id"),
    [
        ("salloc: Granted job allocation 7\n", 7),
        ("salloc: Pending job allocation 7\nsalloc: job 7 queued and waiting for resources\n", 7),
        ("welcome to the site\nsalloc: Granted job allocation 7\nsalloc: Nodes n1 are ready for job\n", 7),
        ("salloc: error: Job submit/allocate failed: Invalid partition name specified\n", None),
        ("a comment: salloc: Granted job allocation 8\n", None),
        ("", None),
    ],
)
def test_the_number_is_in_sallocs_own_words(tmp_path: Path, words: str, job_id: int | None) -> None:
    assert find_salloc_job(tmp_path) is None
    (tmp_path / "salloc.out").write_text(words)
    assert find_salloc_job(tmp_path) == job_id


def test_a_refusal_has_status_and_words(tmp_path: Path) -> None:
    (tmp_path / "salloc.out").write_text("salloc: error: no\n")
    assert read_salloc_refusal(tmp_path) is None
    (tmp_path / "salloc.refused").write_text("1\n")
    assert read_salloc_refusal(tmp_path) == (1, "salloc: error: no\n")
