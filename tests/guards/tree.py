"""The source tree for the guards: every module of the package with its syntax tree and its imports."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

__all__ = ["ROOT", "Import", "Module", "When", "for_each", "imports", "modules", "parse"]

T = TypeVar("T")

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Module:
    """One module of the package.

    Args:
        name: dotted name; a package's `__init__` has the package's name.
        path: its file.
    """

    name: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return parse(self.path)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""
        return _nodes(self.path)


# A dozen guards look at each tree. All together take 70 MB, in the processes that run guards.
@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file; guards do not change it."""
    return ast.parse(path.read_text(), str(path))


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(path)))


@cache
def modules() -> tuple[Module, ...]:
    """Return all modules of `monarch_hpc`."""
    found = []
    for path in sorted((ROOT / "monarch_hpc").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return tuple(found)


class When(Enum):
    """When an import runs."""

    REAL = "with its module"
    LAZY = "inside a function, when that is called"
    TYPING = "never: it is for type checkers"


class Import(NamedTuple):
    """One name that a module imports.

    Args:
        line: line of the import.
        name: dotted name; `from a.b import c` is a.b.c, whether c is a module or a name.
        when: when the import runs.
    """

    line: int
    name: str
    when: When


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Return everything that a module imports, anywhere in its code."""
    return tuple(_imports(module, module.tree, When.REAL))


def _imports(module: Module, node: ast.AST, when: When) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(node.lineno, alias.name, when) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module.path}:{node.lineno}: relative import"
        yield from (Import(node.lineno, f"{node.module}.{alias.name}", when) for alias in node.names)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        when = When.LAZY
    elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        when = When.TYPING
    for child in ast.iter_child_nodes(node):
        yield from _imports(module, child, when)


def for_each(items: Iterable[T]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Make one test of a check and the things that it must hold for, which tells of all for which it does not.

    A test for each of thousands of files would cost more than its check: all processes collect all tests.
    """

    def make(check: Callable[[T], None]) -> Callable[[], None]:
        cases = tuple(items)

        def test() -> None:
            wrong = []
            for case in cases:
                try:
                    check(case)
                except (AssertionError, pytest.fail.Exception) as error:
                    wrong.append(f"{_label(case)}: {error}")
            assert cases, "nothing to check"
            assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)}:", *wrong])

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return make


def _label(item: object) -> str:
    match item:
        case Module(name=name):
            return name
        case Path():
            return str(item.relative_to(ROOT))
        case (first, *_):
            return _label(first)
    return str(item)
