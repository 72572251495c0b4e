"""The folder for shared memory: private, found by programs, and removed by the agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_hpc.agent.resources.shm_folder import (
    find_segments,
    make_own_segments,
    make_segments,
    remove_own_segments,
    remove_segments,
)


def test_what_is_left_in_the_folder_goes_with_it(tmp_path: Path) -> None:
    assert find_segments("a1", 3, tmp_path) == ""
    folder, held = make_segments("a1", 3, tmp_path)
    assert find_segments("a1", 3, tmp_path) == folder
    assert find_segments("a1", 2, tmp_path) == ""
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    (Path(folder) / "ucx_shm_posix_1").write_bytes(bytes(10))
    remove_segments("a1", 3, tmp_path)
    remove_segments("a1", 3, tmp_path)
    assert not list(tmp_path.iterdir())
    os.close(held)


def test_a_program_has_a_folder_of_its_own_until_it_ends_or_is_killed(tmp_path: Path) -> None:
    folder, held = make_own_segments(tmp_path)
    _, other = make_segments("a1", 0, tmp_path)
    remove_segments("a1", 0, tmp_path)
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    remove_own_segments(folder, held)
    killed, held = make_own_segments(tmp_path)
    os.close(held)  # as the kernel does at the process's end
    _, last = make_segments("a2", 0, tmp_path)
    assert not Path(folder).exists() and not Path(killed).exists()
    assert make_own_segments(tmp_path / "missing") == ("", -1)
    remove_own_segments("", -1)
    os.close(other)
    os.close(last)


def test_what_a_killed_agent_left_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    gone, held = make_segments("a1", 0, tmp_path)
    _, other = make_segments("a2", 0, tmp_path)
    os.close(held)  # as the kernel does at the process's end
    _, last = make_segments("a3", 0, tmp_path)
    assert find_segments("a1", 0, tmp_path) == "" and not Path(gone).exists()
    assert find_segments("a2", 0, tmp_path) and find_segments("a3", 0, tmp_path)
    os.close(other)
    os.close(last)


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    folder, held = make_segments("a1", 0, tmp_path)
    Path(folder).chmod(0o755)
    assert find_segments("a1", 0, tmp_path) == ""
    other, other_held = make_segments("a1", 0, tmp_path)
    assert other != folder and find_segments("a1", 0, tmp_path) == other
    remove_segments("a1", 0, tmp_path)
    assert not list(tmp_path.iterdir())
    os.close(held)
    os.close(other_held)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_a_folder_that_another_user_made_first_is_left_to_him(tmp_path: Path) -> None:
    his, held = make_segments("a1", 0, tmp_path)
    os.close(held)
    os.chown(his, 47001, os.getegid())
    folder, held = make_segments("a1", 0, tmp_path)
    assert folder != his and find_segments("a1", 0, tmp_path) == folder
    remove_segments("a1", 0, tmp_path)
    assert [str(path) for path in tmp_path.iterdir()] == [his]
    os.close(held)


def test_without_a_place_for_it_ucx_chooses(tmp_path: Path) -> None:
    assert make_segments("a1", 0, tmp_path / "missing") == ("", -1)
