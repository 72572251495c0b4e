"""Programs in Monarch's style print here what they print there.

Each text in programs/ was written for `monarch`; the .out beside it is what it prints under torchmonarch 0.7.0, run by
hand: ``cp NAME.txt NAME.py; python NAME.py > NAME.out``. Where we differ on purpose, a .here beside it has our output,
and docs/coming-from.md the row. Only the imports are changed here. Programs share one process and one allocation, but
for those whose point is the start of a program, or that have processes of their own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.system.moved import shared_run
from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

FOLDER = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))

ALONE = {"controller_first", "channel_first", "hosts_come_and_go", "mesh_in_a_child"}


def moved(name: str) -> str:
    """The text of a program, with its imports changed."""
    return re.sub(r"\bmonarch\b(?=[. ])", "monarch_hpc", (FOLDER / f"{name}.txt").read_text())


def wanted(name: str) -> list[str]:
    """The lines that a program is to print."""
    here = FOLDER / f"{name}.here"
    return (here if here.exists() else FOLDER / f"{name}.out").read_text().splitlines()


def printed(output: str) -> list[str]:
    """What the program itself printed: output of procs and warnings carry a rank or the name of this package."""
    return [line for line in output.splitlines() if not re.match(r"\[(\w+ )?r\d\d |configure\(\): ", line)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each of the programs that share a process printed."""
    folder = tmp_path_factory.mktemp("moved")
    paths = []
    for name in sorted({*NAMES} - ALONE):
        paths.append(folder / f"{name}.py")
        paths[-1].write_text(moved(name))
    run = Programs(folder)
    try:
        process = run.start(Path(shared_run.__file__).read_text(), *map(str, paths))
        output = process.communicate(timeout=len(paths) * shared_run.LIMIT_S)[0]
    finally:
        run.end()
    sections = output.split("=== ")[1:]
    return {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALONE])
def test_a_program_prints_what_it_printed_there(shared: dict[str, str], name: str) -> None:
    assert printed(shared[name]) == wanted(name), shared[name]


@pytest.mark.parametrize("name", sorted(ALONE))
def test_a_program_that_needs_its_own_process_prints_the_same(programs: Programs, name: str) -> None:
    assert printed(programs.run(moved(name))) == wanted(name)


def test_the_programs_are_for_monarch() -> None:
    assert not [name for name in NAMES if "monarch_hpc" in (FOLDER / f"{name}.txt").read_text()]
    assert {path.stem for path in FOLDER.glob("*.out")} == set(NAMES)
