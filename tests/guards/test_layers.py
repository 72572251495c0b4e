"""Checks that imports point down and each vendor has one door, by the tables that docs/architecture.md draws."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import pytest

from tests.guards.tree import ROOT, Module, When, for_each, imports, modules

# Top to bottom. A package imports only from lower rows, never from its neighbours in the same row.
LAYERS = (
    {"testing"},
    {"cli"},
    {"distributed", "exceptions", "job", "submitit"},
    {"spmd", "rdma", "tensor"},
    {"mesh"},
    {"attach"},
    {"actor", "agent"},
    {"slurm", "transport"},
    {"telemetry", "supervision", "allocation"},
    {"wire"},
    {"config", "tools"},
    {"core"},
)

# Third-party packages, with the only modules that may import them.
DOORS = {
    "IPython": {"mesh.calls.progress", "mesh.output.watch"},
    "click": {"cli"},
    "cloudpickle": {"wire.serializer"},
    "cryptography": {"transport.secure.noise", "transport.tcp.channel"},
    "datafusion": {"telemetry.sql.context", "telemetry.sql.record_rows"},
    "mpi4py": {"actor.runtime.mpi"},
    "numpy": {"rdma.arrays", "rdma.trees.arrays", "telemetry.kept.columns", "telemetry.kept.records"},
    "pyarrow": {"attach.tables.sql", "telemetry.kept", "telemetry.sql", "wire.arrow"},
    "pynvml": {"telemetry.scribe.sampling.gpus"},
    "pytest": {"testing.fixtures"},
    "rich": {"cli.output"},
    "sqlglot": {"telemetry.sql.splitting"},
    "submitit": {"submitit"},
    "torch": {"mesh.scripts.spmd", "rdma.tensors", "rdma.trees.tensors", "tensor", "wire.tensors"},
    "yaml": {"config"},
}

# Modules that may start processes; others may use only the types of the results.
PROCESS_DOORS = {"core.process.spawn", "slurm.commands.client", "testing"}
STARTERS = {
    "subprocess": {"Popen", "call", "check_call", "check_output", "getoutput", "run"},
    "os": {"popen", "posix_spawn", "posix_spawnp", "spawnl", "spawnv", "system"},
}
ENVIRON_DOORS = {
    # Its program inherits it, with the variables that name the run.
    "cli.runs.takeover",
    "agent.__main__",
    "agent.process",
    "attach.embedded",
    "attach.local_agents",
    # srun inherits it, without variables that would change srun.
    "attach.slurm_relay",
    # A job that a client submits inherits that of the process which asked for it.
    "attach.submission",
    "slurm.commands.through_client",
    # Variables tell a task its rank in its step.
    "agent.procs.mpi_task",
    # Its agents inherit it, and use GPUs without a grant.
    "attach.workers.worker",
    "agent.procs.zygote",
    # A zygote that is forked from its agent gets marks that the agent has not.
    "agent.procs.zygote_launch",
    "cli.checks.doctor",
    "cli.main",
    # Its values are taken out of what the help desk gets.
    "cli.checks.report",
    # The program that `run` starts gets the environment of `run`.
    "cli.run",
    # So does the batch job that `sbatch` submits.
    "cli.sbatch",
    # Torch looks there for its folder of compiled code.
    "tensor.worker.training.modules",
    # The engine of queries inherits it, with limits on the threads of libraries.
    "telemetry.sql.engine",
    "config.load",
    "config.program",
    # Commands and workers inherit it, with additions.
    "job",
    # The agents that a program starts in its Slurm job inherit it.
    "mesh.program.allocations.opening",
    # Each proc may have variables of its own.
    "mesh.bootstrap",
    # A script's process gets the environment of its proc.
    "mesh.scripts.script",
    # torch.distributed takes its network interface and local rank from the environment.
    "mesh.scripts.spmd",
    "slurm.allocation",
    # A next job inherits the environment of its predecessor.
    "slurm.requeue",
    # The variables that torchrun would set.
    "spmd",
    # The batch job of a function gets the environment of the program that submits it.
    "submitit.batch",
    # Those of a task say which one it is.
    "submitit.tasks.environment",
    "submitit.tasks.fork_server",
    # What fork servers inherit are the marks of its proc.
    "submitit.tasks.runner",
    "testing",
    # torch can only be told by a variable whether it ends processes whose collectives of NCCL fail.
    "tensor.worker.collectives.nccl",
    # UCX can only be configured by variables.
    "transport.ucx.fabric",
}


# Faces: packages that also offer names of the layers above, each loaded at its first use by its table `_HOMES`. A type
# checker follows the imports, which so must say the same as the table.
OFFERING = {"monarch_hpc", "monarch_hpc.actor", "monarch_hpc.telemetry"}


def within(module: Module, doors: set[str]) -> bool:
    name = module.name.removeprefix("monarch_hpc.")
    return any(name == door or name.startswith(f"{door}.") for door in doors)


def package_of(name: str) -> str:
    """Return the package below `monarch_hpc` that a dotted name is in; empty for `monarch_hpc` itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def row_of(package: str) -> int:
    return next(row for row, packages in enumerate(LAYERS) if package in packages)


@for_each(modules())
def test_imports_point_down(module: Module) -> None:
    package = package_of(module.name)
    for line, name, when in imports(module):
        # The root is above all layers; its import runs no code of theirs.
        if not package or (when is When.TYPING and module.name in OFFERING):
            continue
        target = package_of(name)
        if name.split(".")[0] != "monarch_hpc" or target in (package, "", "__version__"):
            continue
        assert target in set().union(*LAYERS), f"{module.path}:{line}: {name} is in no layer"
        assert row_of(package) < row_of(target), f"{module.path}:{line}: {package} may not import {target}"


@pytest.mark.parametrize("name", sorted(OFFERING))
def test_a_face_reaches_up_by_its_table_only(name: str) -> None:
    face = next(module for module in modules() if module.name == name)
    (table,) = (
        ast.literal_eval(node.value)
        for node in face.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    )
    homes = {f"monarch_hpc.{home[:-1] if home.endswith(':') else f'{home}.{name}'}" for name, home in table.items()}
    typed = {one.name for one in imports(face) if one.when is When.TYPING}
    assert typed == homes and not any(one.when is When.LAZY for one in imports(face))


def test_nothing_else_names_a_module_above_it() -> None:
    """Strings that are names of our modules are imports too: of lower layers, but for those that the pages name."""
    upward = set()
    for module in modules():
        if module.name in OFFERING:
            continue
        package = package_of(module.name)
        for node in module.nodes:
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            found = re.fullmatch(r"(monarch_hpc\.[\w.]+)(:\w+)?", text)
            target = package_of(found[1]) if found else ""
            if target in set().union(*LAYERS) and row_of(target) < row_of(package):
                upward.add((module.name.removeprefix("monarch_hpc."), text))
    assert upward == {
        ("wire.start", "monarch_hpc.mesh.process:main"),
        ("attach", "monarch_hpc.mesh.current"),
        ("slurm.commands.through_client", "monarch_hpc.attach.submission"),
        ("actor.context", "monarch_hpc.mesh.program.controller"),
        ("mesh.view", "monarch_hpc.tensor.active"),
        ("mesh.scripts.spmd", "monarch_hpc.tensor.worker.collectives.backend"),
        ("mesh.calls.endpoint", "monarch_hpc.tensor.actor_calls"),
        ("job.telemetry", "monarch_hpc.cli"),
    }


@for_each(modules())
def test_each_vendor_has_one_door(module: Module) -> None:
    for line, name, _ in imports(module):
        vendor = name.split(".")[0]
        if vendor == "monarch_hpc" or vendor in sys.stdlib_module_names:
            continue
        assert within(module, DOORS.get(vendor, set())), f"{module.path}:{line}: {vendor} may not be imported here"


@for_each(modules())
def test_nothing_reaches_around_the_layers_through_the_root(module: Module) -> None:
    used = {name for line, name in attributes(module, "monarch_hpc")}
    assert used <= {"__file__", "__version__"}


@for_each(modules())
def test_processes_and_the_environment_are_reached_through_their_doors(module: Module) -> None:
    if not within(module, PROCESS_DOORS):
        for library, starters in STARTERS.items():
            lines = [line for line, name in called(module, library) if name in starters]
            assert not lines, f"{module.path}:{lines}: starts a process"
    if not within(module, ENVIRON_DOORS):
        reached = {"environ", "environb", "getenv", "putenv", "unsetenv"}
        lines = [line for line, name in attributes(module, "os") if name in reached]
        assert not lines, f"{module.path}:{lines}: os.environ"


def test_nobody_takes_a_name_out_of_os_or_subprocess_past_these_tests() -> None:
    for module in modules():
        for line, name, _ in imports(module):
            assert not name.startswith(("os.environ", "os.getenv", "subprocess.")), f"{module.path}:{line}: {name}"


def attributes(module: Module, library: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each attribute of *library* that a module reads."""
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == library:
            yield node.lineno, node.attr


def called(module: Module, library: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function of *library* that a module calls."""
    for node in module.nodes:
        function = node.func if isinstance(node, ast.Call) else None
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == library
        ):
            yield function.lineno, function.attr


def test_the_tables_name_no_module_that_is_gone() -> None:
    names = {module.name.removeprefix("monarch_hpc.") for module in modules()}
    doors = set().union(*LAYERS, *DOORS.values(), PROCESS_DOORS, ENVIRON_DOORS)
    assert doors <= names, f"not in the tree: {sorted(doors - names)}"


def test_the_pages_draw_these_layers() -> None:
    rows = [sorted(row) for row in LAYERS]
    _, _, contributing = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Layers\n")
    block = contributing.split("```")[1].strip().splitlines()
    assert [sorted(re.split(r"\s{2,}", line)[0].split(" | ")) for line in block] == rows, "CONTRIBUTING.md"
    _, _, architecture = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Layers\n")
    cells = re.findall(r"^\| (`[^|]+`) \|", architecture.partition("\n## ")[0], re.MULTILINE)
    assert [sorted(re.findall(r"`(\w+)`", cell)) for cell in cells] == rows, "docs/architecture.md"
