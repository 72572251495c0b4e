"""`monarch-hpc doctor`: checks what works on this machine, without changing anything or asking a daemon."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import click

import monarch_hpc
from monarch_hpc.cli.findings import Finding, MachineFacts, Severity, examine
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import Table, current_output, output_options
from monarch_hpc.config import Config
from monarch_hpc.core.errors import ConfigError, SlurmCommandError, SlurmMissing
from monarch_hpc.core.machine.interfaces import read_interfaces
from monarch_hpc.core.version import __version__
from monarch_hpc.slurm.client import SlurmClient
from monarch_hpc.transport.ucx.library import Library, load_library
from monarch_hpc.transport.ucx.machine import read_machine
from monarch_hpc.transport.ucx.settings import named_library, wants_ucx

__all__ = ["command"]

_EXIT_PROBLEM = 1
# Reached only if Slurm looks up its configuration in a DNS that does not answer.
_VERSION_S = 2.0


@click.command()
@output_options
def command() -> int:
    """Check what works on this machine, and how to fix the rest.

    Run it where you start programs, and with 'srun -N1 monarch-hpc doctor' on a host. The exit code is 1 if something
    cannot work, and 0 if it is only slower than it could be.
    """
    findings = examine(_look())
    document = {
        "findings": [{"what": f.what, "state": f.state.value, "found": f.found, "advice": f.advice} for f in findings],
        "num_problems": sum(finding.state is Severity.PROBLEM for finding in findings),
        "num_warnings": sum(finding.state is Severity.WARN for finding in findings),
    }
    quiet = [finding.what for finding in findings if finding.state is not Severity.OK]
    current_output().show(document, Table(["STATE", "WHAT", "FOUND"], _rows(findings)), quiet)
    return _EXIT_PROBLEM if document["num_problems"] else 0


def _rows(findings: Sequence[Finding]) -> list[list[str]]:
    rows = []
    for finding in findings:
        rows.append([finding.state.value, finding.what, finding.found])
        if finding.advice:
            rows.append(["", "", f"-> {finding.advice}"])
    return rows


def _look() -> MachineFacts:
    config_problem = ""
    try:
        config = load_for_command({}).config
    except ConfigError as error:
        config_problem = str(error)
        config = _shipped()
    slurm = SlurmClient(os.environ, _VERSION_S)
    slurm_version = slurm_problem = ""
    try:
        slurm_version = slurm.version()
    except SlurmMissing:
        pass
    except SlurmCommandError as error:
        slurm_problem = (error.stderr.strip().splitlines() or ["no error message"])[-1]
    return MachineFacts(
        python=f"{platform.python_version()}, {sys.executable}",
        package=f"monarch_hpc {__version__}, {Path(monarch_hpc.__file__).parent}",
        config=config,
        config_problem=config_problem,
        environ=os.environ,
        on_host="SLURMD_NODENAME" in os.environ,
        library=_find_library(config),
        machine=read_machine(),
        interfaces=read_interfaces(),
        shm=_read_shm(),
        num_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        slurm_missing=slurm.missing(),
        slurm=slurm_version,
        slurm_problem=slurm_problem,
        num_cpus=(len(os.sched_getaffinity(0)), os.cpu_count() or 1),
    )


def _shipped() -> Config:
    from monarch_hpc.config.load import load_config

    return load_config({"HOME": "/"}, Path("/"), "", None, {}).config


def _find_library(config: Config) -> Library | None:
    return load_library(named_library(config.ucx, os.environ)) if wants_ucx(config.fabric) else None


def _read_shm() -> tuple[int, int] | None:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
