"""Guards the table of faults: each has its row, and each row names tests that exist, or says why there is none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.guards.tree import ROOT

TESTS = ROOT / "tests"
TABLE = TESTS / "faults" / "README.md"
NUM_FAULTS = 44
ROWS = re.findall(r"^\| (F\d\d) \| (.+?) \| (.+) \|$", TABLE.read_text(), re.MULTILINE)
NONE = "none: "


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The names of the test functions in a file."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_each_fault_has_one_row() -> None:
    assert [name for name, _, _ in ROWS] == [f"F{number:02}" for number in range(1, NUM_FAULTS + 1)]
    assert len({words for _, words, _ in ROWS}) == NUM_FAULTS


@pytest.mark.parametrize(("fault", "words", "cell"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_tests_that_exist_or_says_why_there_is_none(fault: str, words: str, cell: str) -> None:
    if cell.startswith(NONE):
        assert len(cell) > len(NONE) + 20 and "::" not in cell, f"{fault}: say why, in a sentence"
        return
    named = re.findall(r"`([^`]+)::(\w+)`", cell)
    assert named and re.sub(r"`[^`]+`", "", cell).strip() == "", f"{fault}: a cell has tests, or a sentence"
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (TESTS / path).is_file() or name not in functions_of(TESTS / path)
    ]
    assert not missing, f"{fault} ({words}): there is no {missing}: change {TABLE.relative_to(ROOT)}"


def test_the_tests_of_faults_are_in_the_table() -> None:
    named = set(re.findall(r"`(faults/test_\w+\.py)::", TABLE.read_text()))
    assert {str(path.relative_to(TESTS)) for path in (TESTS / "faults").glob("test_*.py")} == named


PAGE = ROOT / "docs" / "failure.md"
PROMISES = re.findall(r"^\| (?!what fails|-)(.+?) \|.* \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)


def test_each_promise_of_the_page_for_users_names_faults_that_are_tested() -> None:
    tested = {fault for fault, _, cell in ROWS if not cell.startswith(NONE)}
    # What an endpoint raises is no fault.
    unnamed = [what for what, faults in PROMISES if not re.search(r"F\d\d", faults) and what != "an endpoint raises"]
    assert len(PROMISES) > 20 and not unnamed
    assert {fault for _, faults in PROMISES for fault in re.findall(r"F\d\d", faults)} <= tested
