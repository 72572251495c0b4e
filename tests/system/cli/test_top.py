"""`top` and `top --once` on the procs of two hosts, in a pseudo-terminal and in tmux, with names that are hostile."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc import Actor, HostMesh, ProcMesh, endpoint
from monarch_hpc.agent.procs import stack_dumps
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.telemetry.views.picture import draw
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.calls import CALLS
from tests.child import child
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 120.0
HOSTILE = "bad\x1b]0;owned\x07\x1b[31m<script>"


class Sleeper(Actor):
    @endpoint
    def doze(self, line: str) -> None:
        print(line, flush=True)
        time.sleep(600)

    @endpoint
    def rank(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load().config, 2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    with hosts.spawn_procs(per_host={"gpus": 6}) as procs:
        settle(procs)
        sleepers = procs.spawn("sleeper", Sleeper)
        sleepers.rank.call().get(_PATIENCE_S)
        sleepers.doze.broadcast(f"a line {HOSTILE}")
        procs.slice(gpus=0).spawn(HOSTILE, Sleeper).rank.call().get(_PATIENCE_S)
        wait_until("all to doze", num_dozing, _PATIENCE_S, accept=lambda num: num == 12)
        yield procs


def num_dozing() -> int:
    answer = query_rows(Path(directory()), CALLS, _PATIENCE_S)
    return sum(row.endpoint == "doze" for row in draw(answer.rows).rows) if answer is not None else 0


def directory() -> str:
    return os.environ[DIRECTORY_VARIABLE]


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "monarch_hpc.cli", "top", directory(), *options]


def picture(option: str, accept: Callable[[str], bool]) -> subprocess.CompletedProcess[str]:
    """What it shows when all hosts have answered in the two seconds for which it waits."""
    return wait_until(
        "all answers",
        lambda: subprocess.run(command(option), capture_output=True, text=True, timeout=_PATIENCE_S, check=True),
        _PATIENCE_S,
        accept=lambda shown: accept(shown.stdout),
    )


def is_whole(text: str) -> bool:
    return text.count(".doze") >= 12 and "no answer" not in text


def test_one_picture_for_pipes(procs: ProcMesh, capsys: pytest.CaptureFixture[str]) -> None:
    shown = picture("--once", is_whole)
    assert "\x1b" not in shown.stdout + shown.stderr and "\x07" not in shown.stdout
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:6] == ["HOST,", "PROC,", "ACTOR", "STATE", "CPU", "MEMORY"]
    assert [line.split()[0] for line in lines if line.startswith("local")] == ["local0", "local1"]
    assert len([line for line in lines if re.match(r"  r\d\d ", line)]) == 12
    assert any("sleeper[3].doze" in line and "running" in line for line in lines)
    assert r"bad\x1b]0;owned\x07\x1b[31m<script>[0]" in shown.stdout
    shown = picture("--json", lambda text: json.loads(text)["warnings"] == [])
    document = json.loads(shown.stdout)
    assert len(document["procs"]) == 13 and document["warnings"] == []  # with the program
    assert {one["host"] for one in document["procs"] if one["rss_bytes"] > 0} >= {"local0", "local1"}
    assert main(["top", directory()]) == 64
    assert "--once prints one picture" in capsys.readouterr().err
    assert main(["top", directory(), "--once", "--every", "soon"]) == 64
    capsys.readouterr()
    for once in (["--once"], []):
        assert main(["top", directory(), "--run", "nosuch", *once]) == 64
        assert "'--run': there is no run nosuch; there are: feedbeef" in capsys.readouterr().err


class Screen:
    """A pseudo-terminal with a program on it, and what that has written."""

    def __init__(self, width: int, height: int) -> None:
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (height, width))
        self.process = subprocess.Popen(
            command("--every", "1s"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = b""

    def read(self) -> bytes:
        while select.select([self.ours], [], [], 0)[0]:
            try:
                piece = os.read(self.ours, 1 << 16)
            except OSError:
                break
            if not piece:
                break
            self.text += piece
        return self.text

    def wait_for(self, words: str) -> None:
        wait_until(words, self.read, _PATIENCE_S, accept=lambda text: words.encode() in text)

    def press(self, keys: str) -> None:
        self.read()
        self.text = b""
        os.write(self.ours, keys.encode())


@contextlib.contextmanager
def opened(width: int, height: int) -> Iterator[Screen]:
    screen = Screen(width, height)
    try:
        with child(screen.process):
            yield screen
    finally:
        os.close(screen.ours)


def shows_stack(screen: Screen) -> bool:
    """Whether the stack came in the ten seconds for which it waits, which is long for an idle machine only."""
    screen.press("s")
    try:
        wait_until("a stack", screen.read, 30.0, accept=lambda text: b"Sleeper.doze (test_top.py:" in text)
    except TimeoutError:
        screen.press("q")
        screen.wait_for("open/close")
        return False
    return True


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_keys_in_a_terminal(procs: ProcMesh, width: int, height: int) -> None:
    with opened(width, height) as screen:
        screen.wait_for("sleeper[2].doze")
        screen.wait_for("r05")  # further down: a screen comes in several pieces
        text = screen.text
        assert b"local0" in text and b"r05" in text and b"q quit" in text
        assert b"]0;owned\x07" not in text and b"\x1b[31m<script>" not in text
        screen.press("/r00\n")  # the name of this machine may come before local0
        screen.wait_for("esc all")
        if stack_dumps._find_py_spy():
            screen.press("j")
            wait_until("its stack", partial(shows_stack, screen), 2 * _PATIENCE_S)
            screen.press("q")
            screen.wait_for("open/close")
            screen.press("l")
        else:
            screen.press("jl")
        screen.wait_for(r"a line bad\x1b]0;owned\x07")
        assert b"]0;owned\x07\x1b" not in screen.text
        screen.press("q")
        screen.wait_for("open/close")
        screen.press("/r11\n")
        screen.wait_for("esc all")
        termios.tcsetwinsize(screen.ours, (5, 20))
        screen.wait_for("needs 40x6")
        screen.press("q")
        assert screen.process.wait(_PATIENCE_S) == 0


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux: apt-get install tmux")
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_the_screen_in_tmux(procs: ProcMesh, width: int, height: int, tmp_path: Path) -> None:
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    size = ["-x", str(width), "-y", str(height)]
    subprocess.run([*tmux, "new-session", "-d", *size, *command("--every", "1s")], check=True, timeout=60)
    try:

        def screen() -> list[str]:
            captured = subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, timeout=60)
            return captured.stdout.decode().splitlines()

        def is_drawn(lines: list[str]) -> bool:
            """Whether it is drawn to its last line, with the answers of all hosts."""
            whole = any(line.startswith("q quit") for line in lines) and any(
                "sleeper[2].doze" in line for line in lines
            )
            return whole and lines[0].startswith("monarch-hpc top   3 hosts, 13 procs")  # one is the program's

        lines = wait_until("the hosts", screen, _PATIENCE_S, accept=is_drawn)
        assert lines[1].split()[:3] == ["HOST,", "PROC,", "ACTOR"] and all(len(line) <= width for line in lines)
        assert [line for line in lines if line][-1].startswith("q quit") and lines[2].split()[0] == "local0"
        subprocess.run([*tmux, "send-keys", "Down", "Enter"], check=True, timeout=60)
        wait_until("actors", screen, _PATIENCE_S, accept=lambda lines: any("    sleeper[0]" in line for line in lines))
    finally:
        subprocess.run([*tmux, "kill-server"], check=True, timeout=60)
