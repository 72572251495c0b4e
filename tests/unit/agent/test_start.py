from __future__ import annotations

import dataclasses
import json
import signal

import pytest

from monarch_hpc.agent.children.environment import proc_environment
from monarch_hpc.agent.children.sweep import cookies, has_entries
from monarch_hpc.agent.output.proc_output import MAX_LINE_BYTES, LineSplitter
from monarch_hpc.config.load import load
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.wire.start import ProcOrder, ProcStart, parse_order, render_order

_CONFIG = load(
    {"ucx.library": "/opt/ucx/lib/libucp.so.0", "procs.preload": ["torch"], "transport.cast_direct": 7}
).config
START = ProcStart(
    allocation="a" * 32,
    run="12345678",
    mesh=1,
    rank=3,
    num_ranks=8,
    local_rank=1,
    per_host=2,
    host_rank=1,
    host_name="n2",
    key=bytes(range(32)),
    listen_hosts=["10.1.0.7"],
    gpus=["1", "0"],
    hello_fd=-1,
    record_fd=-1,
    spin_s=0.0,
    agent=["tcp://10.1.0.2:7002"],
    forwarders=["tcp://10.1.0.1:7001"],
    interfaces=["hsn0"],
    segments="/dev/shm/a",
    procs=_CONFIG.procs,
    limits=_CONFIG.transport,
    fabric=_CONFIG.fabric,
    ucx=_CONFIG.ucx,
    rdma=_CONFIG.rdma,
    logs=_CONFIG.logs,
    cpus=[2, 3],
    memory_nodes=[1],
    num_threads=2,
    slurm={"job_id": "7"},
    python="/opt/python",
)
ORDER = ProcOrder([START], {"MINE": "é\n$x"}, ["/here"], "/here", 0o022, "CUDA_VISIBLE_DEVICES", ["GONE"])


def test_an_order_survives_the_way_to_the_zygote() -> None:
    assert parse_order(json.dumps(render_order(ORDER))) == ORDER


def test_a_procs_environment() -> None:
    inherited = {
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "MONARCH_HPC_RUN_COOKIE": "00000000",
        # Every variable that marks a process as a task of the agents' step.
        "PMI_RANK": "0",
        "PMIX_RANK": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "4",
        "SLURM_CPU_BIND_TYPE": "none",
        "SLURM_SRUN_COMM_PORT": "1",
        "SLURM_GTIDS": "1",
        "GONE": "1",
    }
    assert proc_environment(inherited, ORDER, START) == {
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
        "CUDA_VISIBLE_DEVICES": "1,0",
        "MINE": "é\n$x",
        "OMP_NUM_THREADS": "2",
        "MONARCH_HPC_COOKIE": "a" * 32,
        "MONARCH_HPC_HOST": "1",
        "MONARCH_HPC_RUN_COOKIE": "12345678",
        "MONARCH_HPC_MESH": "1",
    }


def test_a_task_of_a_step_keeps_what_tells_mpi_so() -> None:
    order = dataclasses.replace(ORDER, in_step=True)
    environment = proc_environment({"PMIX_RANK": "3", "SLURM_PROCID": "3"}, order, START)
    assert (environment["PMIX_RANK"], environment["SLURM_PROCID"]) == ("3", "3")


@pytest.mark.parametrize(
    ("inherited", "given", "unset", "expected"),
    [
        ({}, {}, [], "2"),
        ({"OMP_NUM_THREADS": "5"}, {}, [], "5"),
        ({"OMP_NUM_THREADS": "5"}, {"OMP_NUM_THREADS": "6"}, [], "6"),
        ({"OMP_NUM_THREADS": "5"}, {}, ["OMP_NUM_THREADS"], None),
    ],
)
def test_the_number_of_threads_is_the_users_first(
    inherited: dict[str, str], given: dict[str, str], unset: list[str], expected: str | None
) -> None:
    order = dataclasses.replace(ORDER, environment=given, unset=unset)
    assert proc_environment(inherited, order, START).get("OMP_NUM_THREADS") == expected
    free = dataclasses.replace(START, num_threads=0)
    assert proc_environment({}, ORDER, free).get("OMP_NUM_THREADS") is None


def test_gpus_are_hidden_where_the_user_says_so() -> None:
    order = dataclasses.replace(ORDER, unset=["CUDA_VISIBLE_DEVICES"])
    assert "CUDA_VISIBLE_DEVICES" not in proc_environment({"CUDA_VISIBLE_DEVICES": "0"}, order, START)


def test_a_host_without_gpus_sets_no_variable() -> None:
    start = dataclasses.replace(START, gpus=[])
    assert "CUDA_VISIBLE_DEVICES" not in proc_environment({}, ORDER, start)


def test_cookies_are_whole_entries() -> None:
    entries = cookies("a" * 32, 1, "12345678")
    environ = b"\0".join([b"PATH=/bin", *entries, b""])
    assert has_entries(environ, entries)
    assert not has_entries(environ, cookies("a" * 32, 1, "1234567"))
    assert not has_entries(environ, cookies("a" * 32, 11))
    assert has_entries(environ, cookies("a" * 32))
    assert not has_entries(b"", cookies("a" * 32))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Exit(0, None), "exit code 0"),
        (Exit(3, None), "exit code 3"),
        (Exit(None, 9), "signal 9 (SIGKILL)"),
        (Exit(None, int(signal.SIGRTMIN) + 1), f"signal {int(signal.SIGRTMIN) + 1} (real-time signal)"),
        (Exit(None, 9, oom=True), "out of memory: the kernel killed it with signal 9 (SIGKILL)"),
    ],
)
def test_an_end_in_words(how: Exit, words: str) -> None:
    assert str(how) == words


def test_lines_are_put_together_from_chunks() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == ["one"]
    assert splitter.feed(b"o\n\nthr") == ["two", ""]
    assert splitter.feed(b"ee") == []
    assert splitter.flush() == ["three"]
    assert splitter.flush() == []


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert LineSplitter().feed(b"a\xffb\xc3\xa9\n") == ["a\ufffdb\u00e9"]


def test_a_character_may_be_split_between_chunks() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\xc3") == []
    assert splitter.feed(b"\xa9\n") == ["é"]


def test_an_endless_line_is_cut() -> None:
    splitter = LineSplitter()
    pieces = splitter.feed(b"x" * MAX_LINE_BYTES) + splitter.feed(b"x" * MAX_LINE_BYTES)
    pieces += splitter.feed(b"y\n")
    assert [len(piece) for piece in pieces] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 1]
