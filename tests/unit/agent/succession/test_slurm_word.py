"""Slurm's word that a host has left the job: only where the job runs on, and one question at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from monarch_hpc.agent.resources.slurm_query import SlurmQuery
from monarch_hpc.agent.succession.slurm_word import SlurmWord
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.allocation import HostEntry

JOB = "JobId=7 JobName=mh JobState={} Reason=None NodeList={}"


def hears(path: Path, job_id: int | None = 7, hosts: list[HostEntry] | None = None) -> bool:
    """Ask for n1 twice; return whether it is gone, once all is answered."""
    engine = Engine()
    engine.start()
    said: list[str] = []
    word = SlurmWord(engine, SlurmQuery(engine, job_id, {"PATH": f"{path}:/usr/bin:/bin"}, gone_s=60.0))
    word.note_hosts(hosts or [])
    asked = threading.Event()

    def ask() -> None:
        word.ask("n1", lambda: said.append("gone"))
        word.ask("n1", lambda: said.append("twice"))
        asked.set()

    try:
        engine.call_soon(ask)
        wait_until("both questions", asked.is_set)
        wait_until("the answer", lambda: {each.name for each in threading.enumerate()}, accept=_is_answered)
        told = threading.Event()
        engine.call_soon(told.set)  # after the answer
        wait_until("all answers", told.is_set)
    finally:
        engine.close()
    assert "twice" not in said
    return "gone" in said


def _is_answered(threads: set[str]) -> bool:
    return "monarch-cause" not in threads


def put(folder: Path, script: str) -> None:
    command = folder / "scontrol"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o700)


@pytest.mark.parametrize(
    ("state", "hosts", "gone"),
    [("RUNNING", "n[2-3]", True), ("RUNNING", "n[1-3]", False), ("RUNNING", "", False), ("COMPLETING", "n2", False)],
)
def test_a_host_is_gone_if_the_job_runs_without_it(tmp_path: Path, state: str, hosts: str, *, gone: bool) -> None:
    put(tmp_path, f"echo '{JOB.format(state, hosts)}'")
    assert hears(tmp_path) is gone


def test_what_cannot_be_asked_says_nothing(tmp_path: Path) -> None:
    assert not hears(tmp_path)
    put(tmp_path, "echo lorem ipsum")
    assert not hears(tmp_path)
    put(tmp_path, f"echo '{JOB.format('RUNNING', 'n2')}'")
    assert not hears(tmp_path, None)


@pytest.mark.parametrize(
    ("state", "own", "gone"), [("NODE_FAIL", 8, True), ("NODE_FAIL", 7, False), ("RUNNING", 8, False)]
)
def test_a_host_of_another_job_is_gone_with_that_job(tmp_path: Path, state: str, own: int, *, gone: bool) -> None:
    put(tmp_path, f"echo '{JOB.format(state, 'n1')}'")
    host = HostEntry(0, "n1", [], 1, "", "", [], [], 0, {}, job_id=7)
    assert hears(tmp_path, own, [host]) is gone
