"""Held folders stay; folders left by killed processes are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from monarch_hpc.core.storage.scratch import (
    PREFIX,
    hold_scratch,
    make_scratch,
    remove_unheld,
    sweep_scratch,
    temporary_folder,
)
from tests.child import child

HOLDER = """
import sys, time
from pathlib import Path
from monarch_hpc.core.storage.scratch import make_scratch
folder, _ = make_scratch(Path(sys.argv[1]), "kind-")
(folder / "key").write_text("secret")
print(folder, flush=True)
time.sleep(600)
"""


def test_a_folder_is_ours_alone_and_stays_while_it_is_held(tmp_path: Path) -> None:
    folder, held = make_scratch(tmp_path, "kind-")
    assert folder.name.startswith(f"{PREFIX}kind-") and folder.stat().st_mode & 0o777 == 0o700
    (folder / "key").write_text("secret")
    also = os.dup(held)
    os.close(held)
    remove_unheld(folder)
    second, other = make_scratch(tmp_path)
    assert folder.exists() and second != folder
    os.close(also)
    remove_unheld(folder)
    assert not folder.exists() and second.exists()
    os.close(other)


def test_what_a_killed_process_left_goes_with_the_next_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with child(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        sweep_scratch(tmp_path)
        assert (folder / "key").exists()
        holder.send_signal(signal.SIGKILL)
    mine, held = make_scratch(tmp_path)
    assert list(tmp_path.iterdir()) == [mine]
    os.close(held)


def test_what_is_not_known_to_be_left_is_not_touched(tmp_path: Path) -> None:
    unlocked = tmp_path / f"{PREFIX}being-made"
    unlocked.mkdir()
    elsewhere = tmp_path / f"{PREFIX}of-another-machine"
    elsewhere.mkdir()
    os.close(hold_scratch(elsewhere))
    (elsewhere / "held").write_text("00000000-0000-0000-0000-000000000000\n")
    (tmp_path / "deeper").mkdir()
    target, held = make_scratch(tmp_path / "deeper")
    os.close(held)
    link = tmp_path / f"{PREFIX}link"
    link.symlink_to(target)
    other = tmp_path / "somebody-elses"
    other.mkdir()
    os.close(hold_scratch(other))
    sweep_scratch(tmp_path)
    sweep_scratch(tmp_path / "missing")
    assert unlocked.exists() and elsewhere.exists() and target.exists() and other.exists()
    remove_unheld(target)
    assert not target.exists()


@pytest.mark.parametrize("variable", ["TMPDIR", "TEMP", "TMP", ""])
@pytest.mark.parametrize("named", ["usable", "missing", "a-file", "."])
@pytest.mark.parametrize("loaded", [True, False])
def test_the_temporary_folder_is_that_of_tempfile(
    variable: str, named: str, loaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "usable").mkdir()
    (tmp_path / "a-file").touch()
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, named if named == "." else str(tmp_path / named))
    monkeypatch.setattr(tempfile, "tempdir", None)
    expected = Path(tempfile.gettempdir())
    monkeypatch.setattr(tempfile, "tempdir", None)
    if not loaded:
        monkeypatch.delitem(sys.modules, "tempfile")
    assert temporary_folder(os.environ) == expected


def test_a_program_that_has_told_tempfile_a_folder_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert temporary_folder(os.environ) == tmp_path
