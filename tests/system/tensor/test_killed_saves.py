"""A program killed in a save: what was saved before is there, the next program saves and loads."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from monarch_hpc.testing import wait_until
from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

_SEED = 7
_NUM_KILLS = 3
_NUM_ELEMENTS = 1 << 23  # of 4 bytes: parts grow while the test looks at them

START = f"""
import json, os, sys, time
import torch
from monarch_hpc import this_host
from monarch_hpc.distributed import Mesh, distribute

wanted = torch.arange(float({_NUM_ELEMENTS}))
mesh = Mesh(procs=this_host().spawn_procs({{"dp": 2}}))
t = distribute(wanted, mesh, ["dp"])
"""

SAVE = (
    START
    + """
folder, background = sys.argv[1], sys.argv[2] == "True"
mesh.save({"t": t}, folder + "/one")
t.add_(1)
print("saving")
saving = (mesh.async_save if background else mesh.save)({"t": t}, folder + "/two")
saving.wait()
time.sleep(300)
"""
)

LOOK = (
    START
    + """
for folder in sys.argv[1:]:
    t.zero_()
    mesh.load({"t": t}, folder + "/one")
    assert torch.equal(t.full_tensor(), wanted)
    try:
        mesh.load({"t": t}, folder + "/two")
        number = 1
    except FileNotFoundError as error:
        assert "no complete checkpoint" in str(error)
        number = 2
        t.add_(2)
        mesh.save({"t": t}, folder + "/two")
        t.zero_()
        mesh.load({"t": t}, folder + "/two")
    assert torch.equal(t.full_tensor(), wanted + number), number
    print("found", json.dumps([number, sorted(os.listdir(folder + "/two"))]))
"""
)


def _num_bytes(folder: Path) -> int:
    """How much a save has written so far; everything once it is complete."""
    if (folder / ".metadata").exists():
        return 4 * _NUM_ELEMENTS
    found = 0
    for path in folder.glob("__*") if folder.exists() else ():
        found += path.stat().st_size
    return found


@pytest.mark.slow  # four programs with torch
def test_a_program_killed_in_a_save_leaves_a_checkpoint_or_none(programs: Programs) -> None:
    """Killed when the parts have so many bytes; one program then looks at what all have left."""
    points = random.Random(_SEED)
    folders = []
    for number in range(_NUM_KILLS):
        folder = programs.folder / f"run {number}"
        at = points.randrange(4 * _NUM_ELEMENTS)
        process = programs.start(SAVE, str(folder), str(number % 2 == 1))
        programs.until(process, "saving")
        wait_until("so much of the checkpoint", lambda: _num_bytes(folder / "two") >= at, accept=bool)  # noqa: B023
        process.kill()
        process.wait()
        folders.append(str(folder))
    programs.until_left()
    output = programs.run(LOOK, *folders)
    found = [json.loads(line.removeprefix("found ")) for line in output.splitlines() if line.startswith("found ")]
    assert len(found) == _NUM_KILLS, output
    for _, names in found:
        assert [re.sub("_[0-9a-f]{16}_", "_", name) for name in names] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
