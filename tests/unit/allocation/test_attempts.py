"""Each start of a job's script has its own folder, and the newest is used."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.allocation.attempts import attempt_folder, attempt_identity, newest_attempt

ID = "0123456789abcdef0123456789abcdef"


def test_the_newest_is_found_by_number(tmp_path: Path) -> None:
    assert newest_attempt(tmp_path) == (0, tmp_path)
    (tmp_path / "attempts").mkdir()
    assert newest_attempt(tmp_path) == (0, tmp_path)
    for number in (1, 2, 10):
        attempt_folder(tmp_path, number).mkdir()
        assert newest_attempt(tmp_path) == (number, tmp_path / "attempts" / str(number))
    (tmp_path / "attempts" / ".nfs0001").touch()
    assert newest_attempt(tmp_path)[0] == 10


def test_those_of_different_attempts_do_not_know_each_other() -> None:
    identities = {attempt_identity(ID, number) for number in (0, 1, 2, 3_000_000_000)}
    assert len(identities) == 4
    assert {len(bytes.fromhex(identity)) for identity in identities} == {16}
    assert attempt_identity(ID, 0) == ID
