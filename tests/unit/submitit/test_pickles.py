"""The pickles of jobs, and the folders that may hold them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from submitit.core import utils

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage import ownership
from monarch_hpc.core.storage.files import own_folder
from monarch_hpc.submitit.batch import batch
from monarch_hpc.submitit.pickles import keep_pickles_private, write_pickle
from monarch_hpc.submitit.submission import StateChange, append_states, states_path, write_submission
from tests.unit.submitit.makers import submission


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The umask of sites whose users share files in a group."""
    before = os.umask(0o002)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_that_decide_what_runs_are_private_under_any_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = submission("m1", folder=str(tmp_path))
    append_states(order, [StateChange(0, "RUNNING")])
    paths = [write_submission(order), states_path(tmp_path, "m1"), tmp_path / "1.pkl", tmp_path / "2.pkl"]
    paths[3].touch(0o666)
    monkeypatch.setattr(utils, "cloudpickle_dump", utils.cloudpickle_dump)  # so that it is put back
    keep_pickles_private()
    utils.DelayedSubmission(abs, -3).dump(paths[2])
    write_pickle(("success", 3), paths[3])
    assert [mode(path) for path in paths] == [0o600] * 4
    assert utils.DelayedSubmission.load(paths[2]).result() == 3
    assert utils.pickle_load(paths[3]) == ("success", 3)


def test_a_folder_is_made_private_and_one_that_others_may_only_read_is_accepted(tmp_path: Path) -> None:
    made = own_folder(tmp_path / "a" / "b")
    assert mode(made) == mode(made.parent) == 0o700
    made.chmod(0o755)
    (tmp_path / "link").symlink_to(made)
    assert own_folder(tmp_path / "link") == tmp_path / "link" and own_folder(made) == made


@pytest.mark.parametrize("shared", [0o777, 0o1777, 0o2775])
def test_a_folder_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: int
) -> None:
    monkeypatch.setattr(ownership, "_is_own_group", lambda gid: False)  # a group of several users
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs").chmod(shared)
    with pytest.raises(ConfigError, match=f"mode {shared:04o}.*chmod go-w {tmp_path}/jobs"):
        own_folder(tmp_path / "jobs")


def test_batch_refuses_it_before_slurm_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        batch(abs, -3, folder=tmp_path / "jobs")
    assert not list((tmp_path / "jobs").iterdir()) and not (tmp_path / "asked").exists()
