"""Guards that the tests of every module can be found from its name, as tests/README.md says."""

from __future__ import annotations

import ast
import re
import signal
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ending_alone
from tests.guards.tree import ROOT, Module, for_each, modules, parse

TESTS = ROOT / "tests"
TABLE = TESTS / "README.md"
FILES = sorted(path for path in TESTS.rglob("test_*.py") if path.parent.name != "guards")
CODE = {module.name: module for module in modules()}
OPTIONAL = {"torch", "pandas", "pyarrow", "datafusion", "sklearn", "nbclient", "ipykernel"}
"""Packages of the extra `dev` that the extra `test` leaves out: large downloads, and not for all interpreters."""
# Faces of packages hold no behaviour, and a `__main__` is its package's command.
TESTED = [module for module in modules() if module.path.stem not in ("__init__", "__main__")]


@cache
def named(path: Path) -> frozenset[str]:
    """Dotted names of our modules and of tests' in a file: imported, or in a string that may be a program."""
    return frozenset(_names(parse(path)))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\b(?:monarch_hpc|tests)(?:\.\w+)*", node.value)


def path_of(name: str) -> Path | None:
    """The file of a module of ours or of the tests."""
    if name in CODE:
        return CODE[name].path
    path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    return path if name.startswith("tests.") and path.exists() else None


@cache
def follows(path: Path) -> frozenset[Path]:
    """The files that a file names."""
    names = set(named(path))
    # A command runs its package's `__main__`, and ours imports the module of a verb when that is used.
    names |= {f"{name}.__main__" for name in names}
    if path == CODE["monarch_hpc.cli.main"].path:
        names |= {name for name in CODE if name.startswith("monarch_hpc.cli.")}
    return frozenset(there for name in names if (there := path_of(name)) is not None)


@cache
def reached(path: Path) -> frozenset[Path]:
    """The files that a test may run: what it names, what that names, and so on, with the conftests around it."""
    found: set[Path] = set()
    left = {path, *(folder / "conftest.py" for folder in path.parents if (folder / "conftest.py").exists())}
    while left:
        file = left.pop()
        found.add(file)
        left |= follows(file) - found
    return frozenset(found)


def findable(module: Module) -> list[Path]:
    """The test files that a reader finds by a module's name."""
    package = module.name.split(".")[1]
    alike = (path for path in called(f"test_{module.path.stem}") if package in path.relative_to(TESTS).parts)
    return sorted({*naming(module.name), *alike})


@cache
def naming(name: str) -> list[Path]:
    """The test files that name a module."""
    return [path for path in FILES if name in named(path)]


@cache
def called(stem: str) -> list[Path]:
    """The test files of one name, in any folder."""
    return [path for path in FILES if path.stem == stem]


def rows() -> Iterator[tuple[list[str], list[Path]]]:
    """The modules and the test files of each row of the table."""
    for folder, names, paths in re.findall(r"^\| `([\w.]+)` \| (.*) \| (.*) \|$", TABLE.read_text(), re.MULTILINE):
        yield (
            [f"monarch_hpc.{folder}.{name}" for name in re.findall(r"`(\w+)`", names)],
            [TESTS / path for path in re.findall(r"`([^`]+)`", paths)],
        )


ROWS = list(rows())
LISTED = [name for names, _ in ROWS for name in names]


@for_each(TESTED)
def test_the_tests_of_a_module_are_found_from_its_name(module: Module) -> None:
    files = [str(path.relative_to(TESTS)) for path in findable(module)]
    if module.name in LISTED:
        assert not files, f"{module.name} is named by {files}: remove it from {TABLE}"
        assert LISTED.count(module.name) == 1, f"{module.name} stands twice in {TABLE}"
    else:
        assert files, (
            f"no test of {module.name} is found from its name: write tests/unit/.../test_{module.path.stem}.py, or, if "
            f"its tests reach it through other modules, add it with their files to the table of {TABLE}"
        )


def test_the_table_names_modules_and_files_that_exist() -> None:
    assert ROWS
    assert [name for name in LISTED if name not in CODE] == [], f"no such modules: remove them from {TABLE}"
    assert [str(path) for _, paths in ROWS for path in paths if not path.is_file()] == []


@for_each(ROWS)
def test_the_files_of_a_row_reach_its_modules(row: tuple[list[str], list[Path]]) -> None:
    names, paths = row
    missed = [
        f"{path.relative_to(TESTS)} -> {name}"
        for path in paths
        for name in names
        if name in CODE and CODE[name].path not in reached(path)
    ]
    assert not missed, f"no import leads from these test files to these modules: {missed}"


@for_each(FILES)
def test_one_that_needs_a_package_that_may_be_missing_is_skipped_without_it(path: Path) -> None:
    skipped: set[str] = set()
    for node in parse(path).body:
        match node:
            case ast.Expr(ast.Call(ast.Attribute(attr="importorskip"), [ast.Constant(str(name))])):
                skipped.add(name)
            case ast.Import(names=[ast.alias(name=name), *_]) | ast.ImportFrom(module=str(name)):
                package = name.partition(".")[0]
                assert package not in OPTIONAL - skipped, f'write pytest.importorskip("{package}") above this import'


def test_one_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conftest._MOST_S", 0.05)
    with pytest.raises(pytest.fail.Exception, match="hangs: not over after"), ending_alone():
        threading.Event().wait()


def test_one_that_interrupts_itself_does_not_end_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    with pytest.raises(RuntimeError, match="SIGINT came"), ending_alone():
        signal.raise_signal(signal.SIGINT)


def test_signals_that_one_has_blocked_are_open_for_the_next() -> None:
    with ending_alone():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_no_child_process_is_waited_for_without_an_end() -> None:
    """`with subprocess.Popen(...)` waits for the child, for ever if the test failed before it ended it."""
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(parse(path))
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
        if isinstance(item.context_expr, ast.Call) and ast.unparse(item.context_expr.func).endswith("Popen")
    ]
    assert not found, f"use tests.child: with child(subprocess.Popen(...)) as process; in {found}"


def test_a_check_for_each_of_many_tells_of_all_that_fail() -> None:
    def below_three(number: int) -> None:
        assert number < 3, "too large"

    with pytest.raises(AssertionError, match=r"(?s)2 of 5:.3: too large.*4: too large"):
        for_each(range(5))(below_three)()
    with pytest.raises(AssertionError, match="nothing to check"):
        for_each(range(0))(below_three)()
