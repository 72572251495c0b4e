"""Checks that our own interpreters do not import from the working folder: each has -P, or a reason for its absence."""

from __future__ import annotations

import ast
import re

from tests.guards.tree import ROOT, Module, for_each, modules

EXEMPT = {
    "agent.rejoin": "the file that is executed; its arguments have -P",
    "agent.relaunch": "an argument of agent.sh, which adds -P",
    "cli.run": "compared with what starts the program",
    "cli.runs.command_line": "the user's program, which finds the files beside it as with `python program.py`",
    "config.load": "the default of a key; code that starts it adds -P",
    "job.execute": "the user's command, which finds the files beside it, or those of its folder with -m",
    "mesh.bootstrap_command": "compared with the value that a Monarch program passes, never started",
    "agent.procs.mpi_step": "an argument of task.sh, and shown to the user",
    "testing.slurmlab.lab": "as users would start it, on a test machine",
    "agent.procs.stack_dumps": "only its path is used, beside which py-spy is",
    "testing.slurmlab.openings": "only its path is used, it is not started",
}


def unsafe_uses(tree: ast.Module) -> list[int]:
    """The lines with a `sys.executable` that is not followed by "-P" in an argument list, nor part of an f-string."""
    fine: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            fine.update(ast.walk(node))
        elif isinstance(node, ast.List | ast.Tuple):
            for word, follower in zip(node.elts, node.elts[1:], strict=False):
                if isinstance(follower, ast.Constant) and follower.value == "-P":
                    fine.update(ast.walk(word))
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in fine]
    return [node.lineno for node in attributes if ast.unparse(node) == "sys.executable"]


@for_each(modules())
def test_an_interpreter_of_ours_does_not_import_from_the_working_folder(module: Module) -> None:
    lines = unsafe_uses(module.tree)
    if module.name.removeprefix("monarch_hpc.") in EXEMPT:
        assert lines, f"{module.path} needs no exemption"
    else:
        assert not lines, f"{module.path}:{lines}: an interpreter without -P"


def test_the_guard_sees_one_without() -> None:
    text = "a = [sys.executable, '-m', 'x']; b = (x or sys.executable, '-P'); c = f'{sys.executable}'; sys.executable"
    assert len(unsafe_uses(ast.parse(text))) == 2


def test_our_shell_scripts_start_interpreters_likewise() -> None:
    scripts = [*(ROOT / "launchers").iterdir(), *(ROOT / "sbatch_templates").iterdir()]
    lines = [line for path in scripts for line in path.read_text().splitlines() if re.search(r"\s-m monarch_hpc", line)]
    started = [line for line in lines if not line.startswith("#")]
    assert len(started) == 4 and all(" -P -m " in line for line in started)
