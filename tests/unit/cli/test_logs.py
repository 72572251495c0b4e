"""`logs` and `status` without Slurm and agents, from files only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from monarch_hpc.cli.main import main
from monarch_hpc.core.storage.files import write_json, write_private
from monarch_hpc.slurm.record import AllocationRecord, current_owner
from monarch_hpc.slurm.registry import Registry

ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    # No Slurm, even if this machine has one.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    registry = Registry(tmp_path / ".local/state/monarch-hpc")
    made = AllocationRecord(ID, "dev", tmp_path / "shared" / ID[:8], "2", current_owner(), 1000.0)
    (made.directory / "attempts").mkdir(parents=True)
    registry.create(made)
    registry.set_job(made, 7, 1001.0)
    return made.directory


def write_runs(directory: Path) -> None:
    for age, run in ((20, "aaaa"), (10, "bbbb")):
        folder = directory / "runs" / run
        folder.mkdir(parents=True)
        for rank, host in ((0, "n1"), (1, "n2.example.org")):
            (folder / f"r{rank:04d}.{host}.log").write_text(f"{run} {rank}\n")
        (folder / "notes.txt").write_text("not a proc's")
        os.utime(folder, (2000 - age, 2000 - age))


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert main(["logs", "--json", *arguments]) == 0
    return {part["label"]: part["text"] for part in json.loads(capsys.readouterr().out)["logs"]}


def test_the_last_run_is_shown(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "slurm.out").write_text("0: agent n1: hello\n")
    assert show(capsys) == {"agents": "0: agent n1: hello\n"}
    write_runs(directory)
    assert show(capsys) == {"run bbbb rank 0 on n1": "bbbb 0\n", "run bbbb rank 1 on n2.example.org": "bbbb 1\n"}
    assert show(capsys, "dev", "--run", "aaaa", "--rank", "1") == {"run aaaa rank 1 on n2.example.org": "aaaa 1\n"}
    assert show(capsys, "--agents") == {"agents": "0: agent n1: hello\n"}


def test_a_log_cannot_command_the_terminal(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "slurm.out").write_text("\x1b[31mred\n")
    assert main(["logs"]) == 0
    assert "\\x1b[31mred" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nope"], 72, "no such allocation (live: dev)"),
        (["--agents"], 72, "nothing was written to "),
        (["--run", "cccc"], 72, "no logs of run cccc (there are: aaaa, bbbb)"),
        (["--rank", "7"], 72, "no proc of rank 7 of run bbbb wrote anything"),
        (["--agents", "--rank", "0"], 64, "--agents excludes --run, --rank, --node, --since"),
    ],
)
def test_what_is_not_there_is_named(
    directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    write_runs(directory)
    assert main(["logs", *arguments]) == code
    assert words in capsys.readouterr().err


def test_a_run_whose_files_were_removed_is_told_from_one_that_never_was(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs(directory)
    write_private(directory / "runs.removed", b"0000\ncccc\n")
    assert main(["logs", "--run", "cccc"]) == 72
    assert "the logs of run cccc were removed" in (told := capsys.readouterr().err) and "'logs.keep_runs'" in told
    for number in range(20):
        (directory / "runs" / f"d{number:03d}").mkdir()
    assert main(["logs", "--run", "dddd"]) == 72
    told = capsys.readouterr().err
    assert "no logs of run dddd (there are: 12 more, and d010, d011," in told and "d009" not in told


def test_status_tells_from_files_how_far_it_has_come(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> str:
        assert main(["status", "--json"]) == 0
        captured = capsys.readouterr()
        document = json.loads(captured.out)
        assert "no Slurm here" in document["slurm"] and "no Slurm here" in captured.err
        (shown,) = document["allocations"]
        assert shown["job_id"] == 7 and shown["live"]
        return str(shown["state"])

    states = [state()]
    folder = directory / "attempts" / "1"
    (folder / "hosts").mkdir(parents=True)
    granted = {"schema": 1, "job_id": 7, "nodelist": "n[1-2]", "restarts": 0, "time_s": 1000}
    write_json(folder / "granted.json", granted)
    states.append(state())
    write_json(folder / "hosts" / "1.json", {})
    states.append(state())
    write_json(folder / "ended.json", {"schema": 1, "job_id": 7, "exit_status": 0, "time_s": 1001})
    states.append(state())
    assert states == ["submitted", "agents 0/2", "agents 1/2", "ending"]


def test_what_was_put_aside_is_shown_before_what_came_after(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs(directory)
    (directory / "runs" / "bbbb" / "r0000.n1.log.old").write_text("before\n")
    assert show(capsys, "--rank", "0") == {"run bbbb rank 0 on n1": "before\nbbbb 0\n"}
