"""Stacks of threads: what py-spy writes, and equal stacks of many procs."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from monarch_hpc.actor.cell import cell
from monarch_hpc.telemetry.views.stacks import fold_stacks, parse_stacks, without_stack
from monarch_hpc.wire.tables.procs import RunProcess

PROC = RunProcess("run", 1, 2, "n1", 77, "ready", "")


def frame(name: str, file: str, line: int, module: str | None = None) -> dict[str, object]:
    return {"name": name, "filename": file, "module": module, "short_filename": "x", "line": line, "locals": None}


def thread(*frames: dict[str, object], name: str | None = "MainThread", gil: bool = False) -> dict[str, object]:
    return {
        "pid": 77,
        "thread_id": 1,
        "thread_name": name,
        "os_thread_id": 78,
        "active": True,
        "owns_gil": gil,
        "frames": list(frames),
        "process_info": None,
    }


def test_the_output_of_py_spy_is_read() -> None:
    library, package = frame("wait", threading.__file__, 320), frame("run", cell.__file__, 5)
    mine = frame("step;\x1b[31m<script>", "/home/me/train.py", 88)
    native = frame("usleep", "/usr/lib/libc.so.6", 0, "/usr/lib/libc.so.6")
    text = json.dumps([thread(native, library, mine, gil=True), thread(library, package, name=None), thread()])
    first, second, third = parse_stacks(text, PROC, native=True)
    assert (first.rank, first.pid, first.thread, first.thread_name, first.native) == (2, 77, 78, "MainThread", True)
    assert (first.function, first.line, first.owns_gil, first.program) == ("usleep", "libc.so.6:0", True, True)
    assert first.stack == "step,\x1b[31m<script> (train.py:88);wait (threading.py:320);usleep (libc.so.6:0)"
    assert (second.program, second.thread_name, second.function) == (False, "", "wait")
    assert (third.stack, third.line, third.program) == ("", "", False)
    installed = frame("forward", f"{threading.__file__.removesuffix('threading.py')}site-packages/model.py", 1)
    assert parse_stacks(json.dumps([thread(installed)]), PROC, native=False)[0].program


@pytest.mark.parametrize("text", ["", "{}x", "[1]", "[{}]", '[{"frames": 3}]', "null", '[{"frames": [{}]}]'])
def test_other_output_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_stacks(text, PROC, native=False)


def test_equal_stacks_are_one_and_those_of_the_fewest_procs_are_first() -> None:
    idle = without_stack(PROC, "", native=False)
    rows = []
    for rank in range(4):
        one = replace(idle, rank=rank, pid=100 + rank, thread=100 + rank)
        rows.append(replace(one, thread=1, stack="run (engine.py:1)"))
        if rank != 3:
            rows.append(
                replace(one, program=True, stack="main (a.py:1);" + ("odd (a.py:9)" if rank == 2 else "sync (a.py:3)"))
            )
    groups = fold_stacks(rows)
    assert [(one.num_procs, [row.rank for row in one.threads], one.frames) for one in groups] == [
        (1, [2], ["odd (a.py:9)", "main (a.py:1)"]),
        (1, [3], []),
        (2, [0, 1], ["sync (a.py:3)", "main (a.py:1)"]),
    ]
    assert fold_stacks(rows, everything=True)[-1].num_procs == 4
    assert fold_stacks([]) == []
