"""Commands that are forks of one process do what those with an interpreter of their own do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_server import CommandServer, open_here
from tests.system.support.first_host import PATIENCE_S, environment, finish, start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandServer]:
    with open_here(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.mark.parametrize(
    "words",
    [("--version",), ("status", "--json"), ("nonsense",), ("release", "nobody"), ("config", "show", "--help")],
    ids=" ".join,
)
def test_exit_status_and_output_are_the_same(server: CommandServer, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = server.run(words, environment(tmp_path), PATIENCE_S, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == finish(start(tmp_path, *words))
    assert done.stdout + done.stderr


def test_the_program_of_a_run_has_the_folder_and_the_environment_of_its_command(
    server: CommandServer, tmp_path: Path
) -> None:
    told = ("run", "--local", "1", "--", "sh", "-c", "pwd; echo $FLAVOUR $HOME; exit 7")
    done = server.run(told, environment(tmp_path) | {"FLAVOUR": "mint"}, PATIENCE_S, folder=tmp_path)
    assert (done.returncode, done.stdout) == (7, f"{tmp_path}\nmint {os.environ['HOME']}\n"), done.stderr


def test_one_that_takes_too_long_is_killed_and_the_next_one_runs(server: CommandServer, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="did not end in time"):
        server.run(("run", "--local", "1", "--", "sleep", "600"), environment(tmp_path), 0.0, folder=tmp_path)
    assert server.run(("--version",), environment(tmp_path), PATIENCE_S).returncode == 0
