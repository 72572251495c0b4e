"""`monarch_hpc.cli.runs.mirror`: what was written, and what is told of it, agree also where a reader stands still."""

from __future__ import annotations

import base64
import os
import threading

import pytest

from monarch_hpc.cli.runs import mirror as mirror_module
from monarch_hpc.cli.runs.mirror import Mirror
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.control.programs import OutputPart, ProgramOutput

_DATA = b"".join(b"%07d\n" % number for number in range(40_000))
"""More than a pipe holds."""


def test_after_a_finish_that_took_too_long_nothing_more_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    monkeypatch.setattr(mirror_module, "_FDS", {"out": writes})
    changed = threading.Event()
    mirror = Mirror(0, changed.set)
    mirror.put(ProgramOutput("run", [OutputPart(0, "out", base64.b64encode(_DATA).decode())], len(_DATA)))
    wait_until("a full pipe", lambda: mirror.next >= os.fpathconf(writes, "PC_PIPE_BUF"))
    assert not mirror.finish(0.1)
    told = mirror.next
    seen = os.read(reads, told)  # there is room again
    assert mirror._over.wait(60.0), "its thread did not end"
    os.close(writes)
    while more := os.read(reads, 1 << 16):
        seen += more
    os.close(reads)
    assert mirror.next == told == len(seen) and seen == _DATA[:told]
    assert not mirror.broken and not changed.is_set()
