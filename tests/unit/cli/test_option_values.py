"""Values of options that are refused before a command does anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


_WRITERS = [
    ["trace", "-o"],
    ["profile", "-o"],
    ["dash", "--save"],
    ["query", "SELECT 1", "--format", "parquet", "-o"],
    ["sbatch", "--output-script"],
]


@pytest.mark.parametrize("words", _WRITERS, ids=lambda words: words[0])
@pytest.mark.parametrize("folder", ["no such/folder", "/proc"])
def test_a_file_that_cannot_be_written_is_refused_by_its_whole_path(
    capsys: pytest.CaptureFixture[str], home: Path, words: list[str], folder: str
) -> None:
    target = f"{home}/no-allocation"  # nothing is asked, should the check fail
    rest = ["/bin/true"] if words[0] == "sbatch" else [] if words[0] == "query" else [target]
    assert main([*words, f"{folder}/x.out", *rest]) == 65
    err = capsys.readouterr().err
    path = home / folder / "x.out"
    if folder == "/proc":
        assert f"{path}: cannot be written: " in err and "choose a folder that is yours" in err
    else:
        assert f"{path}: there is no folder {path.parent}; make it by 'mkdir -p '" in err
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["run", "--timeout", "2x", "x.py"], "'--timeout'"),
        (["run", "--needs", "2x", "x.py"], "'--needs'"),
        (["logs", "--since", "2x"], "'--since'"),
        (["query", "SELECT 1", "--since", "2x"], "'--since'"),
        (["query", "SELECT 1", "--deadline", "2x"], "'--deadline'"),
        (["trace", "-o", "x.json", "--since", "2x"], "'--since'"),
        (["stacks", "--deadline", "2x"], "'--deadline'"),
        (["top", "--every", "2x"], "'--every'"),
        (["dash", "--every", "2x"], "'--every'"),
        (["cancel", "run", "--grace", "2x"], "'--grace'"),
    ],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, list) else "",
)
def test_a_time_that_is_not_one_is_named_with_its_option(
    capsys: pytest.CaptureFixture[str], home: Path, words: list[str], option: str
) -> None:
    assert main(words) == 64
    assert f"Invalid value for {option}: '2x' is not a time; write 90s, 30m" in capsys.readouterr().err
    assert main(["2" if word == "2x" else word for word in words]) == 64
    told = capsys.readouterr().err
    assert f"Invalid value for {option}: '2' is a number without a unit; write 2s, 2m or 2h" in told
    assert list(home.iterdir()) == []


def test_a_time_limit_is_slurms_where_a_number_alone_means_minutes(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert main(["sbatch", "-t", "2x", "x.py"]) == 64
    told = capsys.readouterr().err
    assert "Invalid value for '-t' / '--time': '2x' is not a time limit; write 30 (minutes)" in told
    assert main(["alloc", "--dry-run", "-N", "1", "-t", "30"]) == 0
    assert "--time=30\n" in capsys.readouterr().out


@pytest.mark.parametrize("nodes", ["4", "2-4", "01", "1k", "1-16:2", "1,3,5-9"])
def test_numbers_of_hosts_are_those_of_sbatch(capsys: pytest.CaptureFixture[str], home: Path, nodes: str) -> None:
    assert main(["alloc", "--dry-run", "-N", nodes]) == 0
    assert f"--nodes={nodes}" in capsys.readouterr().out
    assert main(["alloc", "--dry-run", "-N", "1", ":", "-N", f"{nodes}x"]) == 64
    assert f"'-N' / '--nodes': '{nodes}x' is not a number of hosts" in capsys.readouterr().err
    (home / "x.py").touch()
    assert main(["sbatch", "--dry-run", "-N", f"{nodes},", "x.py"]) == 64
    assert f"'-N' / '--nodes': '{nodes},' is not a number of hosts" in capsys.readouterr().err
