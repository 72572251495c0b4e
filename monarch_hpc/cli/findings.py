"""What `monarch-hpc doctor` says of what it saw: each finding with its state, and with the next step where one helps.

Pure: what was seen comes as an argument. One cause is warned of once; what merely follows from it says so.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from monarch_hpc.config import Config
from monarch_hpc.config.tls import ALIASES, opens
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.interfaces import choose_interfaces
from monarch_hpc.core.units import format_size
from monarch_hpc.transport.ucx.library import Library
from monarch_hpc.transport.ucx.machine import Machine
from monarch_hpc.transport.ucx.settings import choose_transports, named_library, wants_ucx

__all__ = ["Finding", "Severity", "Sight", "examine"]

# One channel is one descriptor, and a program has a channel to each of its procs. Every system gives this many.
_FEW_FILES = 1024
# UCX has some 4 MiB of shared memory in use for each process that sends; twice that leaves room for others.
_SHM_PER_CORE_BYTES = 8 << 20
_SHM_LEAST_BYTES = 128 << 20
# RDMA locks the memory that it moves.
_LOCKED_LEAST_BYTES = 1 << 30


class Severity(enum.Enum):
    """How bad a finding is: a warning costs speed or comfort, with a problem something does not work."""

    OK = "ok"
    WARN = "warn"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: its name, the same in every version.
        advice: the next step; empty if none is needed.
    """

    what: str
    found: str
    state: Severity = Severity.OK
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen on this machine.

    Args:
        python: version and file of the interpreter.
        package: version and folder of monarch_hpc.
        config: the configuration; the shipped one where *config_problem* says why there is no other.
        environ: this process's.
        on_host: this machine is a host of a Slurm job, and this process runs in it.
        library: libucp; None where it was not looked for, since UCX is not wanted.
        interfaces: those that are up, name -> IPv4 address.
        shm: size and free bytes of /dev/shm; None where there is none.
        num_files: how many descriptors a process may have, and how many if it asks.
        locked_bytes: how much memory a process may lock; None for any.
        slurm_missing: which of Slurm's commands are not on PATH.
        slurm: what Slurm calls itself; empty where *slurm_problem* says why it did not answer.
        num_cpus: how many this process may use, and how many there are.
    """

    python: str
    package: str
    config: Config
    config_problem: str
    environ: Mapping[str, str]
    on_host: bool
    library: Library | None
    machine: Machine
    interfaces: Mapping[str, str]
    shm: tuple[int, int] | None
    num_files: tuple[int, int]
    locked_bytes: int | None
    slurm_missing: Sequence[str]
    slurm: str
    slurm_problem: str
    num_cpus: tuple[int, int]


def examine(sight: Sight) -> list[Finding]:
    """Return all findings, in the order in which they are best read."""
    return [
        Finding("python", sight.python),
        Finding("package", sight.package),
        _configuration(sight),
        _slurm(sight),
        *_interfaces(sight),
        _libucp(sight),
        *_fabrics(sight),
        _shm(sight),
        _files(sight),
        _locked(sight),
        _cores(sight),
    ]


def _configuration(sight: Sight) -> Finding:
    if sight.config_problem:
        advice = "correct it; the rest of this report is about the shipped defaults"
        return Finding("configuration", sight.config_problem, Severity.PROBLEM, advice)
    site = sight.config.site
    found = "no site profile matches this machine" if site == "generic" else f"site profile {site}"
    return Finding("configuration", f"{found}; all values: monarch-hpc config show --origin")


def _slurm(sight: Sight) -> Finding:
    missing = ", ".join(sight.slurm_missing)
    if not sight.slurm and not sight.slurm_problem:
        advice = "only 'monarch-hpc run --local N' works here; on a cluster, try a login node or 'module load slurm'"
        return Finding("slurm", "no Slurm command is on PATH", Severity.WARN, advice)
    if sight.slurm_problem:
        advice = "'sinfo' must work before alloc can; ask your administrator which SLURM_CONF holds here"
        return Finding("slurm", f"installed, but does not work: {sight.slurm_problem}", Severity.WARN, advice)
    if missing:
        return Finding("slurm", f"{sight.slurm}, without {missing}", Severity.WARN, f"put {missing} on PATH")
    return Finding("slurm", sight.slurm)


def _interfaces(sight: Sight) -> Iterator[Finding]:
    wanted = sight.config.fabric.interfaces
    # What hosts have cannot be seen from a login node.
    names, side = (wanted.compute, "compute") if sight.on_host else (wanted.login, "login")
    try:
        chosen = choose_interfaces(sight.interfaces, names, local=False)
    except ConfigError as error:
        advice = f"correct fabric.interfaces.{side}, currently {error.value}"
        yield Finding("interfaces", error.problem, Severity.PROBLEM, advice)
        return
    found = ", ".join(f"{name} {address}" for name, address in chosen.items())
    why = f"chosen by fabric.interfaces.{side}" if names else "all that route"
    if all(address.startswith("127.") for address in chosen.values()):
        yield Finding("interfaces", f"{found}: no other machine can be reached", Severity.WARN, "bring a network up")
    else:
        yield Finding("interfaces", f"{found} ({why})")


def _libucp(sight: Sight) -> Finding:
    library = sight.library
    if library is None:
        return Finding("libucp", f"not looked for: {_unwanted(sight.config)}")
    if library.reason:
        return _no_libucp(sight, library.reason)
    found = f"{library.version}, {library.path} ({library.origin}); has {', '.join(library.transports)}"
    if library.warnings:
        return Finding("libucp", found, Severity.WARN, "; ".join(library.warnings))
    return Finding("libucp", found)


def _no_libucp(sight: Sight, reason: str) -> Finding:
    if named_library(sight.config.ucx, sight.environ):
        return Finding(
            "libucp", reason, Severity.PROBLEM, "correct $MONARCH_LIBUCP or ucx.library, or leave both empty"
        )
    advice = "without it all goes over sealed tcp: slower within a host, and no RDMA between hosts"
    if "compiler" not in reason:
        advice = (
            "load the site's UCX ('module load ucx'), name its libucp.so.0 in ucx.library or $MONARCH_LIBUCP, or "
            f"'pip install monarch-hpc[ucx]'; {advice}"
        )
    return Finding("libucp", reason, Severity.WARN, advice)


def _unwanted(config: Config) -> str:
    if wants_ucx(config.fabric):
        return ""
    return "fabric.order has tcp before ucx" if "ucx" in config.fabric.order else "fabric.order leaves ucx out"


def _fabrics(sight: Sight) -> Iterator[Finding]:
    yield from _ucx_fabrics(sight)
    yield Finding("tcp", "used wherever nothing faster is; sealed with AES-256-GCM")
    if "relay" not in sight.config.fabric.order:
        yield Finding("relay", "not used: fabric.order leaves it out")
    elif not sight.slurm:
        yield Finding("relay", "not used: there is no Slurm")
    else:
        yield Finding("relay", "used to reach hosts that tcp cannot, through one srun step")


def _ucx_fabrics(sight: Sight) -> Iterator[Finding]:
    config, library, machine = sight.config, sight.library, sight.machine
    tls = ""
    obstacle = _unwanted(config)
    if not obstacle and (library is None or library.reason):
        obstacle = "there is no libucp"
    if not obstacle:
        try:
            tls = choose_transports(config.fabric, config.ucx, sight.environ, machine, login=not sight.on_host)
        except ConfigError as error:
            obstacle = f"{error.key} is refused"
            reason, _, advice = error.problem.partition("; ")
            yield Finding("transports", f"{error.key} = {error.value} {reason}", Severity.PROBLEM, advice)
        else:
            yield Finding("transports", tls)
    has = library.transports if library is not None else ()
    yield _shared_memory(tls, obstacle)
    yield _rdma(sight, tls, obstacle, has)
    yield _ucx_tcp(sight, tls, obstacle)
    if machine.nvidia and not obstacle:
        yield _gpu_memory(tls, has)


def _shared_memory(tls: str, obstacle: str) -> Finding:
    if obstacle:
        return Finding("ucx/shm", f"not used: {obstacle}")
    if not any(opens(tls, name) for name in ALIASES["mm"]):
        return Finding("ucx/shm", "not used: the transports leave it out", Severity.WARN, "add sm to UCX_TLS")
    return Finding("ucx/shm", "used between the processes of a host")


def _rdma(sight: Sight, tls: str, obstacle: str, has: Sequence[str]) -> Finding:
    ports = ", ".join(sight.machine.rdma)
    if not ports:
        return Finding("ucx/rdma", "not used: this machine has no InfiniBand and no RoCE device")
    if obstacle:
        return Finding("ucx/rdma", f"{ports}: not used: {obstacle}")
    if not sight.on_host:
        return Finding("ucx/rdma", f"{ports}: not used by programs on login nodes, only on hosts of a job")
    if not any(name.startswith("ib") for name in has):
        return Finding("ucx/rdma", f"{ports}: not used: this libucp was built without it")
    if not any(opens(tls, name) for name in ALIASES["ib"]):
        return Finding(
            "ucx/rdma", f"{ports}: not used: the transports leave it out", Severity.WARN, "add ib to UCX_TLS"
        )
    return Finding("ucx/rdma", f"{ports}: used between hosts")


def _ucx_tcp(sight: Sight, tls: str, obstacle: str) -> Finding:
    if obstacle:
        return Finding("ucx/tcp", f"not used: {obstacle}")
    if not sight.config.fabric.trusted:
        return Finding("ucx/tcp", "not used: it trusts its network, and fabric.trusted is false")
    if not opens(tls, "tcp"):
        return Finding("ucx/tcp", "not used: the transports leave it out")
    ports = sight.config.ucx.port_range or "any"
    return Finding("ucx/tcp", f"used between hosts, ports {ports}: fabric.trusted says that only you reach them")


def _gpu_memory(tls: str, has: Sequence[str]) -> Finding:
    if "cuda" not in has:
        cure = "load a UCX that was built with CUDA, or 'pip install monarch-hpc[ucx]'"
        return Finding("ucx/cuda", "not used: this libucp was built without CUDA", Severity.WARN, cure)
    if not opens(tls, "cuda_copy"):
        return Finding("ucx/cuda", "not used: the transports leave it out", Severity.WARN, "add cuda to UCX_TLS")
    return Finding("ucx/cuda", "used for memory of NVIDIA's GPUs")


def _shm(sight: Sight) -> Finding:
    if sight.shm is None:
        return Finding(
            "/dev/shm", "is not there", Severity.WARN, "mount a tmpfs: UCX passes frames in it within a host"
        )
    size_bytes, free_bytes = sight.shm
    found = f"{format_size(size_bytes)}, {format_size(free_bytes)} free"
    need_bytes = max(_SHM_LEAST_BYTES, sight.num_cpus[0] * _SHM_PER_CORE_BYTES)
    if free_bytes >= need_bytes:
        return Finding("/dev/shm", found)
    advice = (
        f"free some: one process a core needs up to {format_size(need_bytes)}; start a container with a larger one "
        "(--shm-size, or --ipc=host)"
    )
    return Finding("/dev/shm", found, Severity.WARN, advice)


def _files(sight: Sight) -> Finding:
    soft, hard = sight.num_files
    found = f"{soft} a process" if soft == hard else f"{soft} a process, {hard} if it asks"
    # Programs and agents raise their own soft limit as far as they may.
    if hard >= _FEW_FILES:
        return Finding("open files", found)
    advice = "ask your administrator for a higher 'nofile': a program needs one for each of its procs"
    return Finding("open files", found, Severity.WARN, advice)


def _locked(sight: Sight) -> Finding:
    locked_bytes = sight.locked_bytes
    found = "without limit" if locked_bytes is None else f"{format_size(locked_bytes)} a process"
    if locked_bytes is None or locked_bytes >= _LOCKED_LEAST_BYTES or not sight.machine.rdma or not sight.on_host:
        return Finding("locked memory", found)
    advice = (
        "RDMA locks the memory that it moves: 'ulimit -l unlimited', or ask your administrator for "
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and a slurmd without the limit"
    )
    return Finding("locked memory", found, Severity.WARN, advice)


def _cores(sight: Sight) -> Finding:
    granted, total = sight.num_cpus
    found = f"{granted} of {total} granted"
    spin_us = sight.config.fabric.spin_us
    if not spin_us:
        return Finding("cores", f"{found}; nobody spins: fabric.spin_us is 0")
    if granted < 2:
        return Finding("cores", f"{found}; procs sleep at once: none has a core of its own beside the agent's")
    return Finding("cores", f"{found}; procs spin {spin_us} us before they sleep, where at most {granted - 1} run here")
