"""The source tree for the guards: every module of the package with its syntax tree and its imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "Module", "imports", "modules"]

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
        return ast.parse(self.path.read_text(), str(self.path))


@cache
def modules() -> tuple[Module, ...]:
    """Return all modules of `monarch_hpc`."""
    found = []
    for path in sorted((ROOT / "monarch_hpc").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return tuple(found)


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything that a module imports, anywhere in its code.

    `from a.b import c` counts as a.b.c, whether c is a module or a name.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
