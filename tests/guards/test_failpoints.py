"""The names of failpoints: each stands in the table, and at one place of the code."""

from __future__ import annotations

import ast

from monarch_hpc.core.failpoints import FAILPOINTS
from tests.guards.tree import modules


def test_each_name_is_one_place() -> None:
    found = [
        node.args[0].value
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint"
        if isinstance(node.args[0], ast.Constant)
    ]
    assert sorted(map(str, found)) == sorted(FAILPOINTS)
