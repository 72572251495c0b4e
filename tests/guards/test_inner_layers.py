"""Checks that imports point down inside each package too, and that modules do not import each other in circles."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.guards.tree import Import, Module, When, for_each, imports, modules

# Top to bottom, as in test_layers. A row holds folders and modules of the package; the longest name that fits counts.
INNER = {
    "mesh": (
        {"process", "workers"},
        {"current", "shutdown"},
        {"program"},
        {"host", "instance", "scripts"},
        {"proc"},
        {"healing"},
        {"bootstrap"},
        {"actors"},
        {"calls"},
        {"door", "launch", "value"},
        {"bootstrap_command", "healing.revivals", "output", "plan", "view"},
    ),
    "attach": (
        {"moving", "program_client", "submission", "tables"},
        {"head"},
        {"attach", "embedded", "heir_search", "owner_voice", "workers"},
        {"local_agents", "program_order", "slurm_relay"},
        {"dial_back"},
    ),
    "actor": (
        {"ports", "spans", "transports"},
        {"kept", "metrics"},
        {"runtime"},
        {"casts"},
        {"cell"},
        {"execution", "local_future", "messages"},
        {"endpoint_wrappers"},
        {"config", "context", "endpoint", "fault", "future"},
        {"device_values", "instance", "running_loop", "states"},
    ),
    "agent": (
        {"__main__"},
        {"process"},
        {"service"},
        {"succession.search"},
        {"head_office", "succession", "termination"},
        {"assembly", "relaunch"},
        {"agent", "casts", "head", "ready_report"},
        {"procs", "programs"},
        {"children", "output", "proc_addresses", "proc_settings", "questions", "succession.reports"},
        {"rejoin", "resources"},
        {"agent_args"},
    ),
    "transport": (
        {"node"},
        {"channel"},
        {"connect", "ucx"},
        {"heartbeat", "held_back", "tcp"},
        {"memory.own"},
        {"pulls"},
        {"memory.grants"},
        {"memory.registry", "parts", "secure"},
        {"api"},
        {"credit", "memory", "sharing"},
        {"address", "arrival", "engine"},
        {"spares"},
    ),
}

# Imports that point up or close a circle, each with its reason. None of them runs with its module.
UPWARD = {
    # Meshes of hosts start meshes of procs, and a mesh of procs knows its hosts: one notion in two modules.
    ("mesh.proc", "mesh.host"): {When.LAZY, When.TYPING},
    # A face, whose modules others import from it.
    ("telemetry", "attach.tables.sql"): {When.TYPING},
    ("telemetry", "mesh.program.query"): {When.TYPING},
}

NAMES = {module.name.removeprefix("monarch_hpc.") for module in modules()}


def imported(module: Module) -> dict[str, list[Import]]:
    """Return the modules of ours that a module imports, by name below `monarch_hpc`; without the root."""
    found: dict[str, list[Import]] = {}
    for one in imports(module):
        library, _, name = one.name.partition(".")
        while name and name not in NAMES:
            name = name.rpartition(".")[0]
        if library == "monarch_hpc" and name and name != short(module):
            found.setdefault(name, []).append(one)
    return found


def short(module: Module) -> str:
    return module.name.removeprefix("monarch_hpc.")


def part_of(name: str) -> tuple[int, str]:
    """Return row and part of a module of a package with inner rows; -1 for the package itself."""
    package, _, rest = name.partition(".")
    if not rest:
        return -1, ""
    fits = [
        (row, part)
        for row, parts in enumerate(INNER[package])
        for part in parts
        if rest == part or rest.startswith(f"{part}.")
    ]
    assert fits, f"{name} is in no row of INNER"
    return max(fits, key=lambda fit: len(fit[1]))


@for_each((module, when) for when in When for module in modules() if short(module).partition(".")[0] in INNER)
def test_imports_inside_a_package_point_down(case: tuple[Module, When]) -> None:
    module, when = case
    package = short(module).partition(".")[0]
    row, part = part_of(short(module))
    for target, lines in imported(module).items():
        if target.partition(".")[0] != package or when in UPWARD.get((short(module), target), ()):
            continue
        target_row, target_part = part_of(target)
        wrong = [one.line for one in lines if one.when is when]
        assert not wrong or part == target_part or row < target_row, (
            f"{module.path}:{wrong}: {part} may not import {target_part}"
        )


@pytest.mark.parametrize("whens", [{When.REAL}, set(When)], ids=["at run time", "with lazy and typing imports"])
def test_no_modules_import_each_other_in_a_circle(whens: set[When]) -> None:
    graph = {
        short(module): {
            target
            for target, lines in imported(module).items()
            if any(one.when in whens and one.when not in UPWARD.get((short(module), target), ()) for one in lines)
        }
        for module in modules()
    }
    assert circle(graph) == []


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the nodes of a circle, the first one twice; empty if there is none."""
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for target in sorted(graph[path[-1]] - done):
            if target in path:
                return [*path[path.index(target) :], target]
            if found := search([*path, target]):
                return found
        done.add(path[-1])
        return []

    return next((found for start in sorted(graph) if start not in done and (found := search([start]))), [])


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": {"d"}, "d": set()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}) == ["b", "c", "d", "b"]


def test_the_rows_name_no_module_that_is_gone() -> None:
    parts = {f"{package}.{part}" for package, rows in INNER.items() for row in rows for part in row}
    assert parts | {name for pair in UPWARD for name in pair} <= NAMES
    assert all(When.REAL not in whens for whens in UPWARD.values())
