from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monarch_hpc.cli.run import command
from monarch_hpc.cli.runs.command_line import Missing, plan_argv


@pytest.mark.parametrize(
    ("words", "plain", "program", "name", "num_local"),
    [
        (["train.py"], False, ("train.py",), None, None),
        (
            ["-a", "dev", "train.py", "-a", "x", "--local", "3"],
            False,
            ("train.py", "-a", "x", "--local", "3"),
            "dev",
            None,
        ),
        (["--local", "2", "train.py", "--", "y"], False, ("train.py", "--", "y"), None, 2),
        (["--", "train.py"], True, ("train.py",), None, None),
        (["--local", "2", "--", "bash", "-c", "x"], True, ("bash", "-c", "x"), None, 2),
        (["--", "--", "x"], True, ("--", "x"), None, None),
    ],
)
def test_what_is_ours_and_what_is_the_programs(
    words: list[str], plain: bool, program: tuple[str, ...], name: str | None, num_local: int | None
) -> None:
    params = command.make_context("run", list(words)).params
    ours = {"needs": None, "place": None, "detach": False, "on_interrupt": None, "on_loss": None}
    ours |= {"timeout": None, "as_json": False, "keep": False}
    assert params == {"plain": plain, "program": program, "name": name, "num_local": num_local, **ours}


def test_how_a_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch(0o755)
    Path("plain").touch(0o644)
    Path("tool").touch(0o755)
    assert plan_argv(["train.py", "x"], plain=False) == [sys.executable, "train.py", "x"]
    assert plan_argv(["plain"], plain=False) == [sys.executable, "plain"]
    assert plan_argv(["tool", "x"], plain=False) == [str(tmp_path / "tool"), "x"]
    assert plan_argv(["sh", "x"], plain=True) == ["sh", "x"]
    assert plan_argv(["./tool"], plain=True) == ["./tool"]
    nameless = plan_argv([""], plain=False)
    assert isinstance(nameless, Missing) and nameless.exit_code == 66 and "is empty" in nameless.sentence
    missing = [plan_argv([word], plain=plain) for word, plain in (("x.py", False), ("xyzzy", True), ("./plain", True))]
    assert [found.exit_code if isinstance(found, Missing) else found for found in missing] == [66, 127, 126]
