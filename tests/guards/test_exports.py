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
from monarch_hpc.mesh.process import LATER
from monarch_hpc.wire.start import DEFAULT_ENTRY
from tests.guards.tree import Module, for_each, modules

# Never imported by us at import time: these cost seconds and hundreds of megabytes, which only their users should pay.
HEAVY = {"mpi4py", "numpy", "scipy", "sklearn", "submitit", "torch"}

_LATE_PACKAGES = ("monarch_hpc.submitit.", "monarch_hpc.tensor.")


def names_in_all(module: Module) -> list[str] | None:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


@for_each(modules())
def test_every_exported_name_exists(module: Module) -> None:
    names = names_in_all(module)
    loaded = importlib.import_module(module.name)
    has_code = any(not isinstance(node, ast.Expr) for node in module.tree.body)
    assert names is not None or not has_code or module.path.stem == "__main__", f"{module.path} has no __all__"
    for name in names or []:
        assert getattr(loaded, name, None) is not None, f"{module.name} promises {name}"


def test_a_class_name_means_one_thing() -> None:
    defined: dict[str, list[str]] = {}
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(module.name)
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert not twice, f"rename all but one: {twice}"


def loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after *code*."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, sep='\\n', file=sys.stderr)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr.splitlines())


def test_no_import_brings_a_heavy_package() -> None:
    # Loaded in processes that have imported torch or NumPy.
    late = {"monarch_hpc.rdma.arrays", "monarch_hpc.rdma.tensors", "monarch_hpc.wire.tensors"}
    late |= {"monarch_hpc.rdma.trees.arrays", "monarch_hpc.rdma.trees.tensors"}
    # Loaded in processes of their own.
    late |= {
        f"monarch_hpc.telemetry.kept.{name}"
        for name in ("arrow", "columns", "compact", "decoded", "reading", "records")
    }
    late |= {
        f"monarch_hpc.telemetry.sql.{name}"
        for name in (*("context", "host_part", "live", "planning", "problems", "record_rows", "replies", "results"),)
    }
    # Submitit's plugins, and the programs that they start; and mesh tensors.
    late |= {name for name in (module.name for module in modules()) if name.startswith(_LATE_PACKAGES)}
    lines = [f"import {module.name}" for module in modules() if module.name not in late]
    assert {name.split(".")[0] for name in loaded_by("\n".join(lines))} & HEAVY == set()


def test_the_package_alone_brings_nothing_but_its_lazy_face() -> None:
    loaded = loaded_by("import monarch_hpc")
    lazy = {"monarch_hpc.core", "monarch_hpc.core.lazy_face"}
    assert {name for name in loaded if name.startswith("monarch_hpc.")} == lazy


def test_questions_in_sql_need_no_library_where_they_are_asked() -> None:
    loaded = loaded_by("import monarch_hpc.attach.tables.sql, monarch_hpc.cli.tables.query, monarch_hpc.cli.dash.watch")
    assert {name.split(".")[0] for name in loaded} & {"datafusion", "numpy", "pandas", "pyarrow", "sqlglot"} == set()


def test_a_command_that_asks_a_head_loads_what_one_answer_needs() -> None:
    """Its start is most of the time of a question."""
    loaded = loaded_by("import monarch_hpc.cli.main, monarch_hpc.cli.tables.query, monarch_hpc.attach.tables.sql")
    unneeded = {
        "html",
        "monarch_hpc.agent.resources.shm_folder",
        "monarch_hpc.slurm.allocation",
        "monarch_hpc.telemetry.sql.engine",
        "monarch_hpc.transport.ucx.fabric",
        "monarch_hpc.wire.control.table",
    }
    assert loaded & unneeded == set()


def test_procs_load_nothing_of_us_with_their_users_modules() -> None:
    """The zygote has loaded all modules that actors import from us, so that no proc spends time on that."""
    entry = f"import {DEFAULT_ENTRY.partition(':')[0]}, {', '.join(LATER)}"
    of_programs = {
        "attach_to_workers",
        "batch",
        "on_deadline",
        "progress",
        "requeue",
        "run_worker_loop_forever",
        "seconds_left",
    }
    of_programs |= {"progress", "KeptMesh", "TakenRun", "UnfetchedAnswer", "kept", "takeover"}
    names = ", ".join(sorted(set(monarch_hpc.__all__) - of_programs))
    assert loaded_by(f"{entry}\nfrom monarch_hpc import {names}") == loaded_by(entry)


def test_an_agent_starts_before_its_program_has_loaded_what_it_needs_itself() -> None:
    """Until the first use of hosts has started the agent, which takes longer, nothing else shall delay it."""
    loaded = loaded_by("import monarch_hpc.actor, monarch_hpc.mesh.current, monarch_hpc.attach.local_agents")
    heavy = {"asyncio", "cloudpickle", "cryptography", "json", "logging", "platform", "shutil", "tempfile", "traceback"}
    assert {name.split(".")[0] for name in loaded} & (heavy | {"yaml"}) == set()
    ours = {"actor.runtime", "config.schema", "mesh.door", "mesh.host", "wire.start"}
    assert {f"monarch_hpc.{name}" for name in ours} & loaded == set()


def test_an_agent_loads_what_its_start_needs() -> None:
    """The first answer of a program with an embedded host waits for it."""
    loaded = loaded_by("import monarch_hpc.agent.process, monarch_hpc.agent.service")
    heavy = {"asyncio", "cloudpickle", "hashlib", "html", "platform", "shutil", "tempfile", "yaml"}
    assert {name.split(".")[0] for name in loaded} & heavy == set()
    assert not any(name.startswith("monarch_hpc.slurm") for name in loaded)


def test_calls_of_functions_need_no_event_loop() -> None:
    """Neither do programs nor procs load asyncio before they run a coroutine."""
    loaded = loaded_by(f"import monarch_hpc.mesh.program.controller, {DEFAULT_ENTRY.partition(':')[0]}")
    assert "asyncio" not in loaded


def test_help_imports_no_verb_and_no_configuration() -> None:
    loaded = loaded_by("from monarch_hpc.cli.main import main\nmain(['--help'])")
    assert {name for name in loaded if name.startswith("monarch_hpc.cli.")} == {
        "monarch_hpc.cli.main",
        "monarch_hpc.cli.output",
    }
    assert {name.split(".")[0] for name in loaded} & {"yaml", "rich", "cryptography", "cloudpickle"} == set()


@for_each(modules())
def test_dataclasses_are_made_by_our_decorator(module: Module) -> None:
    """The standard library's compiles its methods at import, which takes longer than all else in our modules."""
    if module.name == "monarch_hpc.core.dataclass":
        return
    imports = [node for node in module.nodes if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports if node.module == "dataclasses" for alias in node.names]
    calls = [
        node.attr
        for node in module.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dataclasses"
    ]
    assert not {"dataclass", "make_dataclass"} & {*names, *calls}


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_of_a_verb_what_the_verb_says_and_every_command_speaks_json(verb: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, verb)
    assert command is not None
    assert (command.help or "").splitlines()[0] == VERBS[verb]
    leaves = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    for leaf in leaves:
        options = {option for parameter in leaf.params for option in parameter.opts}
        # Their stdout belongs to the user's program.
        if verb not in ("run", "attach"):
            assert {"--json", "--quiet"} <= options, f"{leaf.name} lacks the options of output_options"
        undescribed = [p.name for p in leaf.params if isinstance(p, click.Option) and not p.help]
        assert not undescribed, f"{leaf.name}: options without help"
