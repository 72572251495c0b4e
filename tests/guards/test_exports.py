"""Checks that every module has the names in its `__all__`, and that `--help` matches the commands."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys

import click
import pytest

import monarch_hpc
from monarch_hpc.cli.main import VERBS, cli
from monarch_hpc.wire.start import DEFAULT_ENTRY
from tests.guards.tree import Module, modules

# Never imported by us at import time: these cost seconds and hundreds of megabytes, which only their users should pay.
HEAVY = {"mpi4py", "numpy", "scipy", "sklearn", "submitit", "torch"}


def names_in_all(module: Module) -> list[str] | None:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_every_exported_name_exists(module: Module) -> None:
    names = names_in_all(module)
    loaded = importlib.import_module(module.name)
    has_code = any(not isinstance(node, ast.Expr) for node in module.tree.body)
    assert names is not None or not has_code or module.path.stem == "__main__", f"{module.path} has no __all__"
    for name in names or []:
        assert getattr(loaded, name, None) is not None, f"{module.name} promises {name}"


def loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after *code*."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, sep='\\n', file=sys.stderr)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr.splitlines())


def test_no_import_brings_a_heavy_package() -> None:
    # Loaded in processes that have imported torch.
    lines = [f"import {module.name}" for module in modules() if module.name != "monarch_hpc.wire.tensors"]
    assert {name.split(".")[0] for name in loaded_by("\n".join(lines))} & HEAVY == set()


def test_the_package_alone_brings_nothing_but_its_lazy_face() -> None:
    loaded = loaded_by("import monarch_hpc")
    lazy = {"monarch_hpc.core", "monarch_hpc.core.lazy_face"}
    assert {name for name in loaded if name.startswith("monarch_hpc.")} == lazy


def test_procs_load_nothing_of_us_with_their_users_modules() -> None:
    """The zygote has loaded all modules that actors import from us, so that no proc spends time on that."""
    entry = f"import {DEFAULT_ENTRY.partition(':')[0]}"
    of_programs = {"attach_to_workers", "run_worker_loop_forever"}
    names = ", ".join(sorted(set(monarch_hpc.__all__) - of_programs))
    assert loaded_by(f"{entry}\nfrom monarch_hpc import {names}") == loaded_by(entry)


def test_help_imports_no_verb_and_no_configuration() -> None:
    loaded = loaded_by("from monarch_hpc.cli.main import main\nmain(['--help'])")
    assert {name for name in loaded if name.startswith("monarch_hpc.cli.")} == {
        "monarch_hpc.cli.main",
        "monarch_hpc.cli.output",
    }
    assert {name.split(".")[0] for name in loaded} & {"yaml", "rich", "cryptography", "cloudpickle"} == set()


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_of_a_verb_what_the_verb_says_and_every_command_speaks_json(verb: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, verb)
    assert command is not None
    assert (command.help or "").splitlines()[0] == VERBS[verb]
    leaves = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    for leaf in leaves:
        options = {option for parameter in leaf.params for option in parameter.opts}
        # The stdout of `run` belongs to the user's program.
        if verb != "run":
            assert {"--json", "--quiet"} <= options, f"{leaf.name} lacks the options of output_options"
        undescribed = [p.name for p in leaf.params if isinstance(p, click.Option) and not p.help]
        assert not undescribed, f"{leaf.name}: options without help"
