"""Files of /proc are parsed whatever name a process has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from monarch_hpc.core.machine.procfs import each_pid, parse_stat, read_boot_id, read_command, read_environ, read_stat
from monarch_hpc.testing import wait_until
from tests.child import child

NUMBERS = " ".join(str(number) for number in range(4, 53))
NO_PROCESS = 1 << 23


@pytest.mark.parametrize("name", ["python", "my program", "a) Z 1 (b", ")", "((", "Web Content) T", "\xff\n"])
def test_the_name_of_a_process_may_be_anything(name: str) -> None:
    found = parse_stat(f"17 ({name}) S {NUMBERS}\n".encode("latin-1"))
    assert found is not None
    assert (found.state, found.has_ended, found.parent) == ("S", False, 4)
    # Their positions in proc(5).
    assert (found.start_ticks, found.environ_range) == (22, (50, 51))


@pytest.mark.parametrize(("state", "ended"), [("R", False), ("T", False), ("t", False), ("Z", True), ("X", True)])
def test_zombies_have_ended(state: str, ended: bool) -> None:
    found = parse_stat(f"17 (x) {state} {NUMBERS}\n".encode())
    assert found is not None
    assert found.has_ended is ended


def test_a_file_without_fields_is_of_no_process() -> None:
    assert parse_stat(b"") is None


def test_this_process_is_seen() -> None:
    found = read_stat(os.getpid())
    assert found is not None
    assert (found.state, found.parent) == ("R", os.getppid())
    begin, end = found.environ_range
    assert len(read_environ(os.getpid()) or b"") == end - begin
    assert found.memory_bytes > 1 << 20


def test_a_process_that_is_gone_shows_nothing() -> None:
    assert (read_stat(NO_PROCESS), read_environ(NO_PROCESS)) == (None, b"")


def test_a_boot_has_a_uuid() -> None:
    assert read_boot_id() == read_boot_id()
    assert len(read_boot_id().replace("-", "")) == 32


def test_processes_that_begin_during_a_look_are_seen(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "self").mkdir()
    seen = []
    for pid in each_pid(tmp_path):
        seen.append(pid)
        if pid < 4:
            (tmp_path / str(pid)).rmdir()
            (tmp_path / str(pid + 1)).mkdir()
    assert seen == [1, 2, 3, 4]


def test_a_look_ends_however_fast_processes_begin(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    seen = []
    for pid in each_pid(tmp_path):
        seen.append(pid)
        (tmp_path / str(pid + 1)).mkdir()
    assert len(seen) < 100


@pytest.mark.slow  # starts a process that never ceases to exec
def test_a_process_within_an_exec_is_not_one_without_an_environment(tmp_path: Path) -> None:
    script = tmp_path / "again"
    script.write_text('exec /bin/sh "$0"\n')
    with child(subprocess.Popen(["/bin/sh", script], env={"MARK": "x" * 20_000})) as process:
        wait_until("its environment", lambda: read_environ(process.pid))
        found = [read_environ(process.pid) for _ in range(3000)]
    assert {None if environ is None else b"MARK=" + b"x" * 20_000 in environ for environ in found} == {None, True}


@pytest.mark.slow  # starts a process
def test_an_environment_may_be_empty() -> None:
    with child(subprocess.Popen(["/bin/sleep", "600"], env={})) as process:
        assert wait_until("its environment", lambda: read_environ(process.pid), accept=lambda it: it is not None) == b""


def test_a_command_line_is_read_in_words() -> None:
    assert read_command(os.getpid()).split(b"\0")[0] == Path("/proc/self/cmdline").read_bytes().split(b"\0")[0]
    with pytest.raises(OSError):
        read_command(1 << 30)


def test_an_environment_larger_than_most_is_read_whole() -> None:
    large = {f"V{number}": "x" * 1000 for number in range(100)}
    environment = {**os.environ, **large}
    with child(subprocess.Popen(["cat"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"-\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"-\n"  # it is past its exec
        found = read_environ(process.pid) or b""
        process.stdin.close()
    assert set(large) <= {entry.partition(b"=")[0].decode() for entry in found.split(b"\0")}
