"""`monarch-hpc doctor`: checks what works on this machine or on an allocation's hosts, without changing anything."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

import monarch_hpc
from monarch_hpc.cli.checks.draft import ask_slurm, draft_profile
from monarch_hpc.cli.checks.findings import Finding, MachineFacts, Severity, examine
from monarch_hpc.cli.checks.hosts import ask_hosts, dial_back
from monarch_hpc.cli.checks.local_facts import examine_local
from monarch_hpc.cli.checks.probe import probe
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import TextTable, current_output, output_options
from monarch_hpc.config import Config
from monarch_hpc.config.load import Loaded
from monarch_hpc.config.tls import opens
from monarch_hpc.core.errors import ConfigError, SlurmCommandError, SlurmMissing
from monarch_hpc.core.machine.interfaces import read_interfaces
from monarch_hpc.core.version import PYTHON_VERSION, __version__
from monarch_hpc.slurm import Allocations
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.transport.ucx.library import Library, load_library
from monarch_hpc.transport.ucx.machine import Machine, read_machine
from monarch_hpc.transport.ucx.rdma_trial import find_rdma_fault
from monarch_hpc.transport.ucx.settings import named_library, ucx_variables, wants_ucx

__all__ = ["command"]

_EXIT_WARNING = 1
_EXIT_PROBLEM = 2
# Reached only if Slurm looks up its configuration in a DNS that does not answer.
_VERSION_S = 2.0


@click.command()
@click.argument("name", required=False)
@click.option("--write-profile", "profile", metavar="FILE", help="Write a draft of this site's profile; - prints it.")
@click.option("--dial", metavar="ADDRESSES", hidden=True, help="Addresses to connect to, for `doctor NAME`.")
@output_options
def command(name: str | None, profile: str | None, dial: str | None) -> int:
    """Check what works on this machine, and how to fix the rest.

    Run it where you start programs. With NAME, hosts of that allocation are asked, too: what is wrong there, what
    differs from here, and who reaches whom. The exit code is 0 if all is well, 1 if something is slower than it could
    be, and 2 if something cannot work.
    """
    output = current_output()
    loaded, config_problem = _load()
    if profile is not None:
        return _write_profile(profile, loaded)
    on_host = "SLURMD_NODENAME" in os.environ
    facts = _look(loaded.config, config_problem, on_host)
    findings = [*examine(facts), *examine_local(probe(loaded, on_host=on_host))]
    if name is not None:
        allocations = Allocations.open(loaded.config)
        here = {finding.what: finding.found for finding in findings}
        findings += ask_hosts(allocations, allocations.find(name), loaded.config, here)
    document: dict[str, object] = {
        "findings": [{"what": f.what, "state": f.state.value, "found": f.found, "advice": f.advice} for f in findings],
        "num_problems": sum(finding.state is Severity.PROBLEM for finding in findings),
        "num_warnings": sum(finding.state is Severity.WARN for finding in findings),
        "time_s": time.time(),
    }
    if dial is not None:
        document["reached"] = dial_back(dial)
    quiet = [finding.what for finding in findings if finding.state is not Severity.OK]
    output.show(document, TextTable(["STATE", "WHAT", "FOUND"], _rows(findings)), quiet)
    if document["num_problems"]:
        return _EXIT_PROBLEM
    return _EXIT_WARNING if document["num_warnings"] else 0


def _write_profile(target: str, loaded: Loaded) -> int:
    text = draft_profile(ask_slurm(SlurmClient(os.environ, loaded.config.slurm.command_timeout_s)))
    if target != "-":
        # A profile that was checked by hand must not be overwritten.
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    shown = text if target == "-" else f"{target} is a draft: read each line, and compare with the site's documentation"
    current_output().show({"profile": text}, shown.removesuffix("\n"), [target])
    return 0


def _rows(findings: Sequence[Finding]) -> list[list[str]]:
    rows = []
    for finding in findings:
        rows.append([finding.state.value, finding.what, finding.found])
        if finding.advice:
            rows.append(["", "", f"-> {finding.advice}"])
    return rows


def _load() -> tuple[Loaded, str]:
    """Return the configuration and an empty string, or the shipped one and why the user's cannot be used."""
    try:
        return load_for_command({}), ""
    except ConfigError as error:
        from monarch_hpc.config.load import load_config

        return load_config({"HOME": "/"}, Path("/"), "", None, {}, admin=Path("/nonexistent")), str(error)


def _look(config: Config, config_problem: str, on_host: bool) -> MachineFacts:
    slurm = SlurmClient(os.environ, _VERSION_S)
    slurm_version = slurm_problem = ""
    try:
        slurm_version = slurm.version()
    except SlurmMissing:
        pass
    except SlurmCommandError as error:
        slurm_problem = (error.stderr.strip().splitlines() or ["no error message"])[-1]
    library, machine = _find_library(config), read_machine()
    return MachineFacts(
        python=f"{PYTHON_VERSION}, {sys.executable}",
        package=f"monarch_hpc {__version__}, {Path(monarch_hpc.__file__).parent}",
        config=config,
        config_problem=config_problem,
        environ=os.environ,
        on_host=on_host,
        library=library,
        machine=machine,
        interfaces=read_interfaces(),
        shm=_read_shm(),
        num_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        slurm_missing=slurm.missing(),
        slurm=slurm_version,
        slurm_problem=slurm_problem,
        num_cpus=(len(os.sched_getaffinity(0)), os.cpu_count() or 1),
        ptrace_scope=_read_ptrace_scope(),
        rdma_fault=_try_rdma(config, library, machine) if on_host else "",
    )


def _read_ptrace_scope() -> int:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_bytes())
    except (OSError, ValueError):
        return 0


def _find_library(config: Config) -> Library | None:
    return load_library(named_library(config.ucx, os.environ)) if wants_ucx(config.fabric) else None


def _try_rdma(config: Config, library: Library | None, machine: Machine) -> str:
    if library is None or not machine.rdma or not any(name.startswith("ib") for name in library.transports):
        return ""
    try:
        variables = ucx_variables(config.fabric, config.ucx, os.environ, machine, login=False, interfaces=[])
    except ConfigError:
        return ""  # another finding says so
    if not opens(variables["UCX_TLS"], "rc_verbs"):
        return ""
    return find_rdma_fault(named_library(config.ucx, os.environ), variables, os.environ, "")


def _read_shm() -> tuple[int, int] | None:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
