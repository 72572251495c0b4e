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
