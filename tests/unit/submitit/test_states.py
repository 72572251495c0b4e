"""States of jobs as a client reads them from the service's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.submitit.states import StateWatcher
from monarch_hpc.submitit.submission import StateChange, append_states, write_submission
from tests.unit.submitit.makers import submission


def test_states_follow_the_file_and_a_lost_allocation_ends_the_rest(tmp_path: Path) -> None:
    watcher = StateWatcher()
    for job_id in ("m1_0", "m1_1"):
        watcher.follow(job_id, tmp_path)
    assert watcher.get_state("m1_0") == "UNKNOWN" and not watcher.is_done("m1_0")
    order = submission("m1", folder=str(tmp_path), num_jobs=2, directory=str(tmp_path / "gone"))
    append_states(order, [StateChange(0, "RUNNING", hosts=("n1",))])
    assert watcher.get_info("m1_0") == {"JobID": "m1_0", "State": "RUNNING", "NodeList": "n1", "Reason": ""}
    append_states(order, [StateChange(0, "COMPLETED", results=(0,))])
    assert not watcher.is_done("m1_0", "cache") and watcher.is_done("m1_0")
    # Only now can it be known where the service is: nowhere any more.
    write_submission(order)
    assert watcher.get_state("m1_1") == "NODE_FAIL" and "is gone" in watcher.get_info("m1_1")["Reason"]
    assert watcher.get_state("m1_0") == "COMPLETED"
    watcher.clear()
    assert watcher.get_state("m1_0", "cache") == "PENDING" and watcher.get_state("m1_0") == "COMPLETED"


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT"])
def test_each_end_is_an_end(tmp_path: Path, state: str) -> None:
    watcher = StateWatcher()
    watcher.follow("m1", tmp_path)
    append_states(submission("m1", folder=str(tmp_path)), [StateChange(0, state)])
    assert watcher.is_done("m1")
