"""Slurm's word on an end: at once where there is no Slurm, never later than the limit, and once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from monarch_hpc.agent.resources.slurm_query import SlurmQuery
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.engine.engine import Engine

JOB = "JobId=7 JobName=mh JobState={0} Reason=None NodeList=n[1-2]"
NODE = "NodeName=n2 State=DOWN* Reason=no power"


PATIENCE_S = 60.0
"""Limit for answers that come."""


def ask(
    job_id: int | None, path: Path, host: str = "", output: Path | None = None, answer_s: float = PATIENCE_S
) -> list[Death | None]:
    engine = Engine()
    engine.start()
    answers: list[Death | None] = []
    try:
        query = SlurmQuery(engine, job_id, {"PATH": str(path)}, output, answer_s=answer_s)
        engine.call_soon(lambda: query.ask(host, answers.append))
        wait_until("the answer", lambda: len(answers), 2 * PATIENCE_S, accept=bool)
    finally:
        engine.close()
    return answers


def put(folder: Path, script: str) -> None:
    command = folder / "scontrol"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o700)


def test_without_a_job_or_commands_nothing_is_known(tmp_path: Path) -> None:
    assert ask(None, tmp_path) == [None]
    assert ask(7, tmp_path) == [None]


def test_the_job_and_the_host_are_asked_for(tmp_path: Path) -> None:
    put(tmp_path, f'case "$*" in *node*) echo "{NODE}";; *) echo "{JOB.format("RUNNING")}";; esac')
    assert ask(7, tmp_path) == [None]
    (death,) = ask(7, tmp_path, "n2")
    assert death is not None and (death.kind, death.host) == (DeathKind.NODE_FAILURE, "n2")


def test_the_output_says_why_the_step_of_a_job_that_failed_has_ended(tmp_path: Path) -> None:
    put(tmp_path, f'echo "{JOB.format("FAILED").replace("Reason=None", "Reason=NonZeroExitCode")}"')
    output = tmp_path / "slurm.out"
    (death,) = ask(7, tmp_path, output=output)
    assert death is not None and death.kind is DeathKind.EXIT
    output.write_text("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-28T17:20:00 ***\n")
    (death,) = ask(7, tmp_path, output=output)
    assert death is not None and death.kind is DeathKind.CANCELLED


def test_one_that_hangs_or_talks_nonsense_is_no_answer(tmp_path: Path) -> None:
    put(tmp_path, "echo lorem ipsum")
    assert ask(7, tmp_path) == [None]
    put(tmp_path, "exec /bin/sleep 600")
    assert ask(7, tmp_path, answer_s=0.1) == [None]


def test_an_outage_is_logged_once_and_so_is_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    engine.start()
    query = SlurmQuery(engine, 7, {"PATH": str(tmp_path)}, gone_s=PATIENCE_S)
    try:
        for script, num in (("exit 1", 3), (f"echo '{JOB.format('RUNNING')}'", 2)):
            put(tmp_path, script)
            for _ in range(num):
                answers: list[bool] = []
                engine.call_soon(partial(query.ask_gone, "n3", answers.append))
                wait_until("the answer", partial(len, answers), 2 * PATIENCE_S)
                assert answers == [script != "exit 1"]
    finally:
        engine.close()
    outage, end = [record.getMessage() for record in caplog.records if "Slurm" in record.getMessage()]
    assert "Slurm could not be asked what has become of n3" in outage
    assert end == "Slurm can be asked again"
