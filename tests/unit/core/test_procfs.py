"""Files of /proc are parsed whatever name a process has."""

from __future__ import annotations

import os

import pytest

from monarch_hpc.core.machine.procfs import parse_stat, read_boot_id, read_environ, read_stat

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
    assert len(read_environ(os.getpid())) == end - begin


def test_a_process_that_is_gone_shows_nothing() -> None:
    assert (read_stat(NO_PROCESS), read_environ(NO_PROCESS)) == (None, b"")


def test_a_boot_has_a_uuid() -> None:
    assert read_boot_id() == read_boot_id()
    assert len(read_boot_id().replace("-", "")) == 32
