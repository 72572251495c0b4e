from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.cli.checks.findings import Finding, MachineFacts, Severity, examine
from monarch_hpc.config import Config
from monarch_hpc.config.load import load_config
from monarch_hpc.transport.ucx.library import Library
from monarch_hpc.transport.ucx.machine import Machine

OK, WARN, PROBLEM = Severity.OK, Severity.WARN, Severity.PROBLEM

LIBRARY = Library(
    path="/apps/ucx/lib/libucp.so.0",
    version="1.18.1",
    origin="the system's or a module's",
    transports=("cma", "ib", "posix", "self", "sysv", "tcp"),
)
RDMA = Machine(rdma=("mlx5_0:1",))


def configured(flags: Mapping[str, object]) -> Config:
    return load_config({"HOME": "/home/alice"}, Path("/"), "h", None, flags).config


SEEN = MachineFacts(
    python="3.11.2, /usr/bin/python3",
    package="monarch_hpc 0.1.0, /site-packages/monarch_hpc",
    config=configured({}),
    config_problem="",
    environ={},
    on_host=False,
    library=LIBRARY,
    machine=Machine(),
    interfaces={"lo": "127.0.0.1", "eth0": "10.1.0.7", "hsn0": "10.3.0.7"},
    shm=(32 << 30, 31 << 30),
    num_files=(1024, 1 << 20),
    locked_bytes=None,
    slurm_missing=(),
    slurm="slurm 22.05.8",
    slurm_problem="",
    num_cpus=(4, 64),
    ptrace_scope=0,
)


def find(facts: MachineFacts, what: str) -> Finding:
    (finding,) = (finding for finding in examine(facts) if finding.what == what)
    return finding


def test_a_machine_with_nothing_in_the_way() -> None:
    assert [(finding.what, finding.found) for finding in examine(SEEN)] == [
        ("python", "3.11.2, /usr/bin/python3"),
        ("package", "monarch_hpc 0.1.0, /site-packages/monarch_hpc"),
        ("configuration", "no site profile matches this machine; all values: monarch-hpc config show --origin"),
        ("slurm", "slurm 22.05.8"),
        ("interfaces", "eth0 10.1.0.7, hsn0 10.3.0.7 (all that route)"),
        (
            "libucp",
            (
                "1.18.1, /apps/ucx/lib/libucp.so.0 (the system's or a module's); has cma, ib, posix, self, sysv, tcp; "
                "without cuda, gdr, rocm"
            ),
        ),
        ("cma", "used for buffers between the processes of a host, unless a container forbids it"),
        ("transports", "self,posix,cma"),
        ("ucx/shm", "used between the processes of a host"),
        ("ucx/rdma", "not used: this machine has no InfiniBand and no RoCE device"),
        ("ucx/tcp", "not used: it trusts its network, and fabric.trusted is false"),
        ("tcp", "used where nothing faster is available; sealed with AES-256-GCM"),
        ("relay", "used to reach hosts that tcp cannot, through one srun step"),
        ("/dev/shm", "32 GiB, 31 GiB free"),
        ("open files", "1024 per process, hard limit 1048576"),
        ("locked memory", "no limit"),
        ("cores", "4 of 64 granted; procs spin 50 us before they sleep, if at most 3 run here"),
    ]
    assert all((finding.state, finding.advice) == (OK, "") for finding in examine(SEEN))


def test_whatever_needs_attention_says_what_to_do() -> None:
    worst = replace(
        SEEN,
        config_problem="config.yaml:3: unknown key",
        environ={"UCX_TLS": "all"},
        on_host=True,
        machine=replace(RDMA, nvidia=True),
        interfaces={"lo": "127.0.0.1"},
        shm=None,
        num_files=(256, 256),
        locked_bytes=64 << 10,
        slurm_missing=("scontrol",),
    )
    wrong = {finding.what: finding for finding in examine(worst) if finding.state is not OK}
    assert set(wrong) == {
        *("configuration", "slurm", "interfaces", "transports", "/dev/shm", "open files", "locked memory")
    }
    assert all(finding.advice for finding in wrong.values())


@pytest.mark.parametrize(
    ("changes", "state", "found", "advice"),
    [
        ({"library": Library(reason="built without a C compiler: install gcc")}, WARN, "C compiler", "sealed tcp"),
        ({"library": Library(reason="no libucp: not found")}, WARN, "no libucp", "module load ucx.*sealed tcp"),
        (
            {"library": Library(reason="no libucp: /x: not found"), "environ": {"MONARCH_LIBUCP": "/x"}},
            PROBLEM,
            "/x",
            r"correct \$MONARCH_LIBUCP or ucx.library",
        ),
        ({"library": replace(LIBRARY, warnings=("no InfiniBand in it",))}, WARN, "1.18.1", "no InfiniBand in it"),
        ({"library": None, "config": configured({"fabric.order": ["tcp"]})}, OK, "fabric.order leaves ucx out", "^$"),
        ({"library": None, "config": configured({"fabric.order": ["tcp", "ucx"]})}, OK, "has tcp before ucx", "^$"),
    ],
)
def test_libucp(changes: dict[str, object], state: Severity, found: str, advice: str) -> None:
    assert_finding(find(replace(SEEN, **changes), "libucp"), state, found, advice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"library": Library(reason="no libucp")},
            {"ucx/shm": "not used: there is no libucp", "ucx/tcp": "not used: there is no libucp"},
        ),
        (
            {"library": None, "config": configured({"fabric.order": ["tcp"]})},
            {"ucx/shm": "not used: fabric.order leaves ucx out", "relay": "not used: fabric.order leaves it out"},
        ),
        (
            {"config": configured({"fabric.order": ["tcp", "cma"]})},
            {"cma": "not used: fabric.order leaves it out, or has tcp before it"},
        ),
        ({"slurm": "", "slurm_problem": "no answer"}, {"relay": "not used: there is no Slurm"}),
        (
            {"config": configured({"fabric.trusted": True})},
            {
                "transports": "self,posix,cma,tcp",
                "ucx/tcp": "used between hosts, ports any: fabric.trusted says that only you reach them",
            },
        ),
        (
            {"config": configured({"fabric.trusted": True, "ucx.transports": "sm,self"}), "on_host": True},
            {"transports": "cma,posix,xpmem,self", "ucx/tcp": "not used: the transports leave it out"},
        ),
        (
            {"machine": RDMA},
            {"ucx/rdma": "mlx5_0:1: not used by programs on login nodes, only on hosts of a job"},
        ),
        ({"machine": RDMA, "on_host": True}, {"ucx/rdma": "mlx5_0:1: used between hosts"}),
        (
            {"machine": RDMA, "on_host": True, "library": replace(LIBRARY, transports=("posix", "tcp"))},
            {"ucx/rdma": "mlx5_0:1: not used: this libucp was built without it"},
        ),
        (
            {"machine": Machine(nvidia=True), "library": replace(LIBRARY, transports=("cuda", "posix"))},
            {"ucx/cuda": "used for memory of NVIDIA's GPUs"},
        ),
        ({"environ": {"UCX_TLS": "all"}}, {"ucx/shm": "not used: UCX_TLS is refused"}),
    ],
)
def test_fabrics_say_whether_they_are_used_and_why(changes: dict[str, object], expected: dict[str, str]) -> None:
    found = {finding.what: finding for finding in examine(replace(SEEN, **changes))}  # type: ignore[arg-type]
    for what, words in expected.items():
        assert_finding(found[what], OK, f"^{words}$", "^$")


@pytest.mark.parametrize(
    ("what", "changes", "state", "found", "advice"),
    [
        (
            "transports",
            {"environ": {"UCX_TLS": "all"}},
            PROBLEM,
            "UCX_TLS = 'all' opens UCX over tcp, which trusts its network, while fabric.trusted is false",
            "name transports without tcp",
        ),
        ("ucx/shm", {"environ": {"UCX_TLS": "ib,self"}, "on_host": True}, WARN, "leave it out", "add sm to UCX_TLS"),
        (
            "ucx/rdma",
            {"environ": {"UCX_TLS": "sm,self"}, "on_host": True, "machine": RDMA},
            WARN,
            "leave it out",
            "add ib to UCX_TLS",
        ),
        (
            "ucx/rdma",
            {
                "on_host": True,
                "machine": RDMA,
                "rdma_fault": "SIGABRT ended it (a; b); UCX_IB_GID_INDEX may name another",
            },
            WARN,
            r"mlx5_0:1: not used: SIGABRT ended it \(a; b\)$",
            "^UCX_IB_GID_INDEX may name another",
        ),
        ("ucx/cuda", {"machine": Machine(nvidia=True)}, WARN, "without CUDA", "a UCX that was built with CUDA"),
        (
            "ucx/cuda",
            {
                "machine": Machine(nvidia=True),
                "library": replace(LIBRARY, transports=("cuda", "posix")),
                "environ": {"UCX_TLS": "sm,self"},
                "on_host": True,
            },
            WARN,
            "leave it out",
            "add cuda to UCX_TLS",
        ),
        (
            "slurm",
            {"slurm": "", "slurm_missing": ("sbatch", "srun", "squeue", "scancel", "scontrol")},
            WARN,
            "no Slurm command",
            "run --local",
        ),
        (
            "slurm",
            {"slurm": "", "slurm_problem": "sbatch: fatal: x"},
            WARN,
            "does not work: sbatch: fatal: x",
            "SLURM_",
        ),
        ("slurm", {"slurm_missing": ("scancel",)}, WARN, "slurm 22.05.8, without scancel", "put scancel on PATH"),
        (
            "interfaces",
            {"config": configured({"fabric.interfaces.login": ["ib*"]})},
            PROBLEM,
            "no such interface on this machine; known: eth0, hsn0, lo",
            r"correct fabric.interfaces.login, currently \['ib\*'\]",
        ),
        ("interfaces", {"interfaces": {"lo": "127.0.0.1"}}, WARN, "no other machine can be reached", "bring"),
        ("/dev/shm", {"shm": (64 << 20, 60 << 20)}, WARN, "64 MiB, 60 MiB free", "up to 128 MiB;.*--shm-size"),
        ("/dev/shm", {"shm": (1 << 30, 200 << 20), "num_cpus": (128, 128)}, WARN, "200 MiB free", "up to 1 GiB"),
        ("open files", {"num_files": (256, 512)}, WARN, "256 per process, hard limit 512", "administrator.*nofile"),
        (
            "locked memory",
            {"locked_bytes": 8 << 20, "machine": RDMA, "on_host": True},
            WARN,
            "8 MiB per process",
            "ulimit -l unlimited.*MEMLOCK.*a window of 16 MiB",
        ),
        (
            "gpu allocator",
            {
                "machine": Machine(nvidia=True),
                "environ": {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8,expandable_segments:True"},
            },
            WARN,
            "PYTORCH_CUDA_ALLOC_CONF=.*expandable_segments:True",
            "UCX 1.18.1 does not reach expandable segments in GPUs directly, 1.22 does",
        ),
    ],
)
def test_what_is_in_the_way(what: str, changes: dict[str, object], state: Severity, found: str, advice: str) -> None:
    assert_finding(find(replace(SEEN, **changes), what), state, found, advice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "changes", "found"),
    [
        (
            "interfaces",
            {"config": configured({"fabric.interfaces.compute": ["hsn*"]}), "on_host": True},
            "hsn0 10.3.0.7 (chosen by fabric.interfaces.compute)",
        ),
        ("locked memory", {"locked_bytes": 8 << 20}, "8 MiB per process"),
        ("gpu allocator", {"machine": Machine(nvidia=True)}, "torch's own choice"),
        ("open files", {"num_files": (4096, 4096)}, "4096 per process"),
        (
            "cores",
            {"config": configured({"fabric.spin_us": 0})},
            "4 of 64 granted; procs do not spin: fabric.spin_us is 0",
        ),
        (
            "cores",
            {"num_cpus": (1, 8)},
            "1 of 8 granted; procs do not spin: there is no core besides the agent's",
        ),
        (
            "configuration",
            {"config": configured({"site": "slurmlab"})},
            "site profile slurmlab; all values: monarch-hpc config show --origin",
        ),
    ],
)
def test_what_is_as_it_should_be(what: str, changes: dict[str, object], found: str) -> None:
    assert find(replace(SEEN, **changes), what) == Finding(what, found)  # type: ignore[arg-type]


def test_a_kernel_that_forbids_copies_between_processes() -> None:
    finding = find(replace(SEEN, ptrace_scope=1), "cma")
    assert_finding(finding, OK, "^forbidden: kernel.yama.ptrace_scope is 1$", "an administrator sets it to 0")


def assert_finding(finding: Finding, state: Severity, found: str, advice: str) -> None:
    assert finding.state is state, finding
    assert re.search(found, finding.found), finding
    assert re.search(advice, finding.advice), finding
