from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from monarch_hpc.cli.allocations import completion
from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import cli, main
from monarch_hpc.slurm.nodes.exclusions import Exclusions
from monarch_hpc.slurm.record import AllocationRecord, Ended, current_owner
from monarch_hpc.slurm.registry import Registry


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with two live allocations, one that has ended, and a bad host."""
    monkeypatch.setenv("MONARCH_HPC_PATHS__STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm
    registry = Registry(tmp_path / "state")
    for number, name in enumerate(("dev", "data", "done")):
        directory = tmp_path / "shared" / f"{number:08x}"
        record = AllocationRecord(f"{number:08x}" + "0" * 24, name, directory, "2", current_owner(), 1000.0)
        registry.create(record)
        if name == "done":
            registry.close(record, Ended("COMPLETED", "", "scontrol", 1001.0))
        else:
            attempt = directory / "attempts" / "1"
            attempt.mkdir(parents=True)
            path = attempt / "granted.json"
            path.write_text('{"schema": 1, "job_id": 7, "nodelist": "n[1-2]", "restarts": 0, "time_s": 5}')
            path.chmod(0o600)
    Exclusions(tmp_path / "state").add("n7", "slow", 1.0)
    return tmp_path / "state"


def completed(words: list[str], incomplete: str) -> list[str]:
    shell = ShellComplete(cli, {}, "monarch-hpc", "_MONARCH_HPC_COMPLETE")
    return [item.value for item in shell.get_completions(words, incomplete)]


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ([], "ex", ["extend", "exec"]),
        (["release"], "", ["data", "dev"]),
        (["run", "-a"], "de", ["dev"]),
        (["ctx", "use"], "x", []),
        (["shell"], "n", ["n1", "n2", "n7"]),
        (["exec", "--host"], "n7", ["n7"]),
        (["node", "undrain"], "", ["n1", "n2", "n7"]),
        (["alloc"], "--est", ["--estimate"]),
    ],
)
def test_words_are_completed_without_slurm(state: Path, words: list[str], incomplete: str, found: list[str]) -> None:
    assert completed(words, incomplete) == found


def test_a_name_is_taken_as_it_is(state: Path) -> None:
    assert ALLOCATION.convert("no such", None, None) == "no such"
    assert isinstance(completion.command, click.Command)


@pytest.mark.parametrize(("shell", "words"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "function _mon")])
def test_each_shell_gets_its_lines(shell: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert words in capsys.readouterr().out
