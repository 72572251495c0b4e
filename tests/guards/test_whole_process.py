"""Checks that nothing changes what all threads of a user's process share: its environment, umask and working folder."""

from __future__ import annotations

import ast

from tests.guards.tree import Module, for_each, modules

EXEMPT = {
    "agent.process": "a process of its own, before its threads",
    "agent.procs.zygote": "the child, which has one thread, before user code",
    "agent.procs.zygote_launch": "likewise",
    "agent.programs.launcher": "a process of its own",
    "config.program": "for child processes; on the driver only variables that are there change or go, which frees none",
    "mesh.bootstrap": "the variables that the user gives procs, before their actors",
    "mesh.scripts.spmd": "torch has no other way to be told the interface; before it starts its group",
    "spmd.elastic": "torchrun's variables, which the caller asks for",
    "submitit.tasks.fork_server": "the child, which has one thread, before user code",
    "telemetry.kept.compact": "a process of its own",
    "telemetry.scribe.__main__": "likewise",
    "telemetry.sql.engine": "likewise",
    "transport.ucx.library": "of a thread of its own, which has a working folder of its own by then",
}

_CALLS = {"os.umask", "os.chdir", "os.fchdir", "os.putenv", "os.unsetenv", "os.nice", "locale.setlocale"}
_OF_ENVIRONMENT = {f"os.environ.{name}" for name in ("update", "setdefault", "pop", "popitem", "clear")}


def changes(module: Module) -> list[int]:
    """The lines that change what a process has once."""
    found = []
    for node in module.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _CALLS | _OF_ENVIRONMENT:
            found.append(node.lineno)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found += [node.lineno] * (ast.unparse(node.value) == "os.environ")
    return found


@for_each(modules())
def test_nothing_changes_what_all_threads_share(module: Module) -> None:
    """Files that another thread makes meanwhile may be open to all, and its `getenv` may read memory that is free."""
    lines = changes(module)
    name = module.name.removeprefix("monarch_hpc.")
    assert bool(lines) is (name in EXEMPT), f"{module.path}: lines {lines}"
