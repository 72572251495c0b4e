"""Imports without garbage collections."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from monarch_hpc.core.process.imports import uncollected


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_collections_pause(thresholds: tuple[int, int, int]) -> None:
    with uncollected():
        assert gc.get_threshold() == (0, *thresholds[1:])
        assert gc.isenabled()
        with uncollected():
            pass
        assert gc.get_threshold() == (0, *thresholds[1:])
    assert gc.get_threshold() == thresholds


def test_what_a_module_chose_stays() -> None:
    with uncollected():
        gc.set_threshold(5000, 5, 5)
    assert gc.get_threshold() == (5000, 5, 5)


def test_an_error_ends_the_pause(thresholds: tuple[int, int, int]) -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError("no such module")
    assert gc.get_threshold() == thresholds


@pytest.mark.slow  # starts an interpreter
def test_commands_collect_after_their_imports() -> None:
    program = (
        "import gc, runpy, sys\n"
        "sys.argv = ['monarch-hpc', 'completion', 'bash']\n"
        "try:\n"
        "    runpy.run_module('monarch_hpc.cli', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0 and gc.isenabled() and gc.get_threshold()[0] > 0\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def _collected(num: int) -> list[list[int]]:
    """Objects that the collector knows, more than it waits for."""
    return [[number] for number in range(num)]


def test_what_was_built_is_not_gone_through_again(thresholds: tuple[int, int, int]) -> None:
    gc.unfreeze()  # what `tests/conftest.py` has kept from collections
    try:
        with uncollected():
            built = _collected(2 * thresholds[0])
        assert any(one is built[-1] for one in gc.get_objects(generation=2))
    finally:
        gc.freeze()


def test_what_someone_keeps_from_collections_stays_so(thresholds: tuple[int, int, int]) -> None:
    kept = _collected(1)
    gc.freeze()
    with uncollected():
        built = _collected(2 * thresholds[0])
    assert not any(one is kept[0] or one is built[-1] for one in gc.get_objects(generation=2))
