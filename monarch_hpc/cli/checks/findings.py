"""The findings of `monarch-hpc doctor`, each with its severity and, where one helps, the next step.

Pure: the facts about the machine are an argument. Each cause is warned about once; findings that merely follow from it
refer to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence

from monarch_hpc.config import Config
from monarch_hpc.config.tls import ALIASES, opens
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.machine.interfaces import choose_interfaces
from monarch_hpc.core.text.units import format_size
from monarch_hpc.transport.ucx.library import Library
from monarch_hpc.transport.ucx.machine import Machine
from monarch_hpc.transport.ucx.settings import choose_transports, named_library, wants_ucx

__all__ = ["Finding", "MachineFacts", "Severity", "examine"]

# A channel needs a descriptor, and a program has a channel to each of its procs. Every system allows this many.
_FEW_FILES = 1024
# UCX uses some 4 MiB of shared memory for each sending process; twice that leaves room for others.
_SHM_PER_CORE_BYTES = 8 << 20
_SHM_LEAST_BYTES = 128 << 20
# RDMA locks the memory that it transfers.
_LOCKED_LEAST_BYTES = 1 << 30


class Severity(enum.Enum):
    """The severity of a finding: a warning costs speed or comfort; with a problem something does not work."""

    OK = "ok"
    WARN = "warn"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        what: name of the check, the same in every version.
        advice: the next step; empty if none is needed.
    """

    what: str
    found: str
    state: Severity = Severity.OK
    advice: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about this machine.

    Args:
        python: version and file of the interpreter.
        package: version and folder of monarch_hpc.
        config: the configuration; the shipped defaults if there is a *config_problem*.
        config_problem: why the configuration cannot be used; empty if it can.
        environ: this process's environment.
        on_host: this process runs in a Slurm job, on one of its hosts.
        library: libucp; None if it was not looked for, because UCX is not wanted.
        machine: devices of this machine.
        interfaces: interfaces that are up, name -> IPv4 address.
        shm: size and free bytes of /dev/shm; None if it does not exist.
        num_files: soft and hard limit of open files for a process.
        locked_bytes: limit of locked memory for a process; None if unlimited.
        slurm_missing: Slurm commands that are not on PATH.
        slurm: Slurm's version; empty if there is no Slurm, or a *slurm_problem*.
        slurm_problem: why Slurm did not answer; empty if it did.
        num_cpus: number of CPUs that this process may use, and of all.
        ptrace_scope: the kernel's setting ``kernel.yama.ptrace_scope``; 0 if it has none.
        rdma_fault: why the host's RDMA network cannot be used, see `transport.ucx.rdma_trial`; empty if it can, or was
            not tried.
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
    ptrace_scope: int
    rdma_fault: str = ""


def examine(facts: MachineFacts) -> list[Finding]:
    """Return all findings, in reading order."""
    return [
        Finding("python", facts.python),
        Finding("package", facts.package),
        _configuration(facts),
        _slurm(facts),
        *_interfaces(facts),
        _libucp(facts),
        *_fabrics(facts),
        _shm(facts),
        _files(facts),
        _locked(facts),
        _cores(facts),
    ]


def _configuration(facts: MachineFacts) -> Finding:
    if facts.config_problem:
        advice = "correct it; the rest of this report is about the shipped defaults"
        return Finding("configuration", facts.config_problem, Severity.PROBLEM, advice)
    site = facts.config.site
    found = "no site profile matches this machine" if site == "generic" else f"site profile {site}"
    return Finding("configuration", f"{found}; all values: monarch-hpc config show --origin")


def _slurm(facts: MachineFacts) -> Finding:
    missing = ", ".join(facts.slurm_missing)
    if not facts.slurm and not facts.slurm_problem:
        advice = "only 'monarch-hpc run --local N' works here; on a cluster, try a login node or 'module load slurm'"
        return Finding("slurm", "no Slurm command is on PATH", Severity.WARN, advice)
    if facts.slurm_problem:
        advice = "'sinfo' must work before alloc can; ask your administrator for the SLURM_CONF of this machine"
        return Finding("slurm", f"installed, but does not work: {facts.slurm_problem}", Severity.WARN, advice)
    if missing:
        return Finding("slurm", f"{facts.slurm}, without {missing}", Severity.WARN, f"put {missing} on PATH")
    return Finding("slurm", facts.slurm)


def _interfaces(facts: MachineFacts) -> Iterator[Finding]:
    wanted = facts.config.fabric.interfaces
    # Hosts' interfaces cannot be seen from a login node.
    names, side = (wanted.compute, "compute") if facts.on_host else (wanted.login, "login")
    try:
        chosen = choose_interfaces(facts.interfaces, names, local=False)
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


_OPTIONAL = ("cuda", "gdr", "ib", "rocm")
"""Parts of UCX for memory of GPUs and for RDMA, which a libucp may have been built without."""

_EXPANDABLE_FROM = (1, 22)
"""The first UCX whose cuda_ipc takes memory of torch's expandable segments."""


def _libucp(facts: MachineFacts) -> Finding:
    library = facts.library
    if library is None:
        return Finding("libucp", f"not looked for: {_unwanted(facts.config)}")
    if library.reason:
        return _no_libucp(facts, library.reason)
    found = f"{library.version}, {library.path} ({library.origin}); has {', '.join(library.transports)}"
    missing = [part for part in _OPTIONAL if not any(part in name for name in library.transports)]
    if missing:
        found += f"; without {', '.join(missing)}"
    if library.warnings:
        return Finding("libucp", found, Severity.WARN, "; ".join(library.warnings))
    return Finding("libucp", found)


def _no_libucp(facts: MachineFacts, reason: str) -> Finding:
    if named_library(facts.config.ucx, facts.environ):
        return Finding(
            "libucp", reason, Severity.PROBLEM, "correct $MONARCH_LIBUCP or ucx.library, or leave both empty"
        )
    advice = "without it all data goes over sealed tcp: slower within a host, and no RDMA between hosts"
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


def _fabrics(facts: MachineFacts) -> Iterator[Finding]:
    yield _cross_memory(facts)
    yield from _ucx_fabrics(facts)
    yield Finding("tcp", "used where nothing faster is available; sealed with AES-256-GCM")
    if "relay" not in facts.config.fabric.order:
        yield Finding("relay", "not used: fabric.order leaves it out")
    elif not facts.slurm:
        yield Finding("relay", "not used: there is no Slurm")
    else:
        yield Finding("relay", "used to reach hosts that tcp cannot, through one srun step")


def _cross_memory(facts: MachineFacts) -> Finding:
    order = facts.config.fabric.order
    if "cma" not in order or order.index("cma") > order.index("tcp"):
        return Finding("cma", "not used: fabric.order leaves it out, or has tcp before it")
    if facts.ptrace_scope:
        advice = "buffers within a host are read by the next fabrics; for one copy, an administrator sets it to 0"
        return Finding("cma", f"forbidden: kernel.yama.ptrace_scope is {facts.ptrace_scope}", advice=advice)
    return Finding("cma", "used for buffers between the processes of a host, unless a container forbids it")


def _ucx_fabrics(facts: MachineFacts) -> Iterator[Finding]:
    config, library, machine = facts.config, facts.library, facts.machine
    tls = ""
    obstacle = _unwanted(config)
    if not obstacle and (library is None or library.reason):
        obstacle = "there is no libucp"
    if not obstacle:
        try:
            tls = choose_transports(config.fabric, config.ucx, facts.environ, machine, login=not facts.on_host)
        except ConfigError as error:
            obstacle = f"{error.key} is refused"
            reason, _, advice = error.problem.partition("; ")
            yield Finding("transports", f"{error.key} = {error.value} {reason}", Severity.PROBLEM, advice)
        else:
            yield Finding("transports", tls)
    has = library.transports if library is not None else ()
    yield _shared_memory(tls, obstacle)
    yield _rdma(facts, tls, obstacle, has)
    yield _ucx_tcp(facts, tls, obstacle)
    if machine.nvidia and not obstacle:
        yield _gpu_memory(tls, has)
        yield _allocator(facts)


def _shared_memory(tls: str, obstacle: str) -> Finding:
    if obstacle:
        return Finding("ucx/shm", f"not used: {obstacle}")
    if not any(opens(tls, name) for name in ALIASES["mm"]):
        return Finding("ucx/shm", "not used: the transports leave it out", Severity.WARN, "add sm to UCX_TLS")
    return Finding("ucx/shm", "used between the processes of a host")


def _rdma(facts: MachineFacts, tls: str, obstacle: str, has: Sequence[str]) -> Finding:
    ports = ", ".join(facts.machine.rdma)
    if not ports:
        return Finding("ucx/rdma", "not used: this machine has no InfiniBand and no RoCE device")
    if obstacle:
        return Finding("ucx/rdma", f"{ports}: not used: {obstacle}")
    if not facts.on_host:
        return Finding("ucx/rdma", f"{ports}: not used by programs on login nodes, only on hosts of a job")
    if not any(name.startswith("ib") for name in has):
        return Finding("ucx/rdma", f"{ports}: not used: this libucp was built without it")
    if not any(opens(tls, name) for name in ALIASES["ib"]):
        return Finding(
            "ucx/rdma", f"{ports}: not used: the transports leave it out", Severity.WARN, "add ib to UCX_TLS"
        )
    if facts.rdma_fault:
        fault, _, advice = facts.rdma_fault.rpartition("; ")
        return Finding("ucx/rdma", f"{ports}: not used: {fault}", Severity.WARN, advice)
    return Finding("ucx/rdma", f"{ports}: used between hosts")


def _ucx_tcp(facts: MachineFacts, tls: str, obstacle: str) -> Finding:
    if obstacle:
        return Finding("ucx/tcp", f"not used: {obstacle}")
    if not facts.config.fabric.trusted:
        return Finding("ucx/tcp", "not used: it trusts its network, and fabric.trusted is false")
    if not opens(tls, "tcp"):
        return Finding("ucx/tcp", "not used: the transports leave it out")
    ports = facts.config.ucx.port_range or "any"
    return Finding("ucx/tcp", f"used between hosts, ports {ports}: fabric.trusted says that only you reach them")


def _gpu_memory(tls: str, has: Sequence[str]) -> Finding:
    if "cuda" not in has:
        cure = "load a UCX that was built with CUDA, or 'pip install monarch-hpc[ucx]'"
        return Finding("ucx/cuda", "not used: this libucp was built without CUDA", Severity.WARN, cure)
    if not opens(tls, "cuda_copy"):
        return Finding("ucx/cuda", "not used: the transports leave it out", Severity.WARN, "add cuda to UCX_TLS")
    return Finding("ucx/cuda", "used for memory of NVIDIA's GPUs")


def _allocator(facts: MachineFacts) -> Finding:
    """Whether UCX takes the memory that torch's allocator makes on GPUs."""
    chosen = facts.environ.get("PYTORCH_CUDA_ALLOC_CONF") or facts.environ.get("PYTORCH_ALLOC_CONF") or ""
    version = facts.library.version if facts.library is not None else ""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    found = f"PYTORCH_CUDA_ALLOC_CONF={chosen}" if chosen else "torch's own choice"
    if "expandable_segments:true" not in chosen.lower() or not numbers or numbers >= _EXPANDABLE_FROM:
        return Finding("gpu allocator", found)
    advice = (
        f"UCX {version} does not reach expandable segments in GPUs directly, "
        f"{'.'.join(map(str, _EXPANDABLE_FROM))} does: load a newer one, or leave expandable_segments out"
    )
    return Finding("gpu allocator", found, Severity.WARN, advice)


def _shm(facts: MachineFacts) -> Finding:
    if facts.shm is None:
        return Finding(
            "/dev/shm", "does not exist", Severity.WARN, "mount a tmpfs: within a host UCX passes frames through it"
        )
    size_bytes, free_bytes = facts.shm
    found = f"{format_size(size_bytes)}, {format_size(free_bytes)} free"
    need_bytes = max(_SHM_LEAST_BYTES, facts.num_cpus[0] * _SHM_PER_CORE_BYTES)
    if free_bytes >= need_bytes:
        return Finding("/dev/shm", found)
    advice = (
        f"free some: one process per core needs up to {format_size(need_bytes)}; in a container, start it with a "
        "larger one (--shm-size, or --ipc=host)"
    )
    return Finding("/dev/shm", found, Severity.WARN, advice)


def _files(facts: MachineFacts) -> Finding:
    soft, hard = facts.num_files
    found = f"{soft} per process" if soft == hard else f"{soft} per process, hard limit {hard}"
    # Programs and agents raise their soft limit to the hard one.
    if hard >= _FEW_FILES:
        return Finding("open files", found)
    advice = "ask your administrator for a higher 'nofile': a program needs one for each of its procs"
    return Finding("open files", found, Severity.WARN, advice)


def _locked(facts: MachineFacts) -> Finding:
    locked_bytes = facts.locked_bytes
    found = "no limit" if locked_bytes is None else f"{format_size(locked_bytes)} per process"
    if locked_bytes is None or locked_bytes >= _LOCKED_LEAST_BYTES or not facts.machine.rdma or not facts.on_host:
        return Finding("locked memory", found)
    advice = (
        "RDMA locks the memory that it transfers: 'ulimit -l unlimited', or ask your administrator for "
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and a slurmd without the limit. Memory beyond the limit "
        "is read by frames through a window of 16 MiB, which is slower"
    )
    return Finding("locked memory", found, Severity.WARN, advice)


def _cores(facts: MachineFacts) -> Finding:
    granted, total = facts.num_cpus
    found = f"{granted} of {total} granted"
    spin_us = facts.config.fabric.spin_us
    if not spin_us:
        return Finding("cores", f"{found}; procs do not spin: fabric.spin_us is 0")
    if granted < 2:
        return Finding("cores", f"{found}; procs do not spin: there is no core besides the agent's")
    return Finding("cores", f"{found}; procs spin {spin_us} us before they sleep, if at most {granted - 1} run here")
