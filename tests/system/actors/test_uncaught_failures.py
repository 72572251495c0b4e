"""Output of a program that does not catch the failure of a call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PATIENCE_S = 60.0

PROGRAM = """\
import monarch_hpc
from monarch_hpc import Actor, context, endpoint


class Probe(Actor):
    @endpoint
    def divide(self, by: int) -> float:
        return 1 / by

    @endpoint
    def own(self) -> None:
        raise LookupError(f"no shard for {context().proc.rank // 2}")


procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2})
probe = procs.spawn("probe", Probe)
print(probe.divide.options(on_error="collect").call(0).get())
for future in probe.divide.stream(0):
    print(future.exception().__notes__[0].count("line 8, in divide"))
try:
    probe.own.call().get()
except monarch_hpc.MeshError as error:
    print(error)
probe.divide.call(0).get()
"""


def test_it_shows_the_line_of_the_endpoint_once(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "2", str(path)],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.count(f'File "{path}", line 8, in divide') == 1
    assert ended.stderr.count("on local0, endpoint divide; remote traceback:") == 1
    assert "first rank 0: ZeroDivisionError: division by zero (also on ranks 1, 2, 3)" in ended.stderr
    shown, *notes, different = ended.stdout.splitlines()
    assert shown.count(f"ZeroDivisionError('division by zero') raised at {path}:8 in divide") == 4
    assert notes == ["1"] * 4
    assert different.startswith(
        "probe.own failed on 4 ranks; first rank 0: LookupError: no shard for 0 (also on rank 1)"
    )
    assert different.endswith("; rank 2: LookupError: no shard for 1 (also on rank 3)")
