"""The folder for shared memory: private, found by programs, and gone with the agent."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.agent.segments import find_segments, make_segments, remove_segments


def test_what_is_left_in_the_folder_goes_with_it(tmp_path: Path) -> None:
    assert find_segments("a1", 3, tmp_path) == ""
    folder = make_segments("a1", 3, tmp_path)
    assert find_segments("a1", 3, tmp_path) == folder
    assert find_segments("a1", 2, tmp_path) == ""
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    (Path(folder) / "ucx_shm_posix_1").write_bytes(bytes(10))
    remove_segments("a1", 3, tmp_path)
    remove_segments("a1", 3, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    folder = Path(make_segments("a1", 0, tmp_path))
    folder.chmod(0o755)
    assert make_segments("a1", 0, tmp_path) == find_segments("a1", 0, tmp_path) == ""


def test_without_a_place_for_it_ucx_chooses(tmp_path: Path) -> None:
    assert make_segments("a1", 0, tmp_path / "missing") == ""
