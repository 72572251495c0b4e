"""Submitit's executor on local agents: its API, its errors, and jobs that outlive their client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core import plugins
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError

from monarch_hpc.allocation.programs import read_exit
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.slurm.record import AllocationRecord, current_owner
from monarch_hpc.slurm.registry import Registry
from monarch_hpc.submitit.executor import MonarchHpcExecutor
from monarch_hpc.submitit.job import MonarchHpcJob
from monarch_hpc.submitit.link import leave_services
from monarch_hpc.testing import wait_until
from tests.guards.tree import ROOT
from tests.system.support.agent_client import alive, cookie_holders
from tests.system.support.submitit_plugin import write_plugin

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an allocation of two hosts, registered under the name ``dev``."""
    folder = tmp_path_factory.mktemp("submitit")
    config = load({"procs.stop_s": 1.0, "submitit.idle_s": 60.0}).config
    plugin = write_plugin(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{plugin}")
        patch.syspath_prepend(str(plugin))
        plugins._get_plugins.cache_clear()
        plugins.get_executors.cache_clear()
        with open_local(2, config, folder / "allocation") as directory:
            registry = Registry(folder / "state" / "monarch-hpc")
            record = AllocationRecord("ab" * 16, "dev", directory, "2", current_owner(), time.time())
            registry.create(record)
            registry.set_job(record, 7, time.time())
            yield folder
        # One that was killed is there until the kernel has run it once more.
        until("the end of its processes", lambda: cookie_holders(folder / "allocation") == [])
    plugins._get_plugins.cache_clear()
    plugins.get_executors.cache_clear()


@pytest.fixture
def executor(home: Path) -> Iterator[submitit.AutoExecutor]:
    yield submitit.AutoExecutor(home / "log" / "%j", cluster="monarch_hpc")
    leave_services()


@pytest.fixture
def direct(home: Path) -> Iterator[MonarchHpcExecutor]:
    """The executor that takes parameters of its own."""
    yield MonarchHpcExecutor(home / "direct", allocation="dev")
    leave_services()


def add(left: int, right: int) -> int:
    print(f"adding {left} and {right}")
    print("with care", file=sys.stderr)
    return left + right


def fail() -> None:
    raise ValueError("on purpose")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_parent() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)


def place() -> tuple[object, ...]:
    found = submitit.JobEnvironment()
    return found.global_rank, found.node, found.local_rank, found.num_tasks, found.num_nodes, found.hostnames


def hold(flag: Path, word: str = "") -> str:
    """Say on a file that it runs, and wait until another one appears."""
    started = flag.with_suffix(".starts")
    started.write_text(str(os.getpid()))
    started.rename(flag.with_suffix(".pid"))
    deadline_s = time.monotonic() + PATIENCE_S
    while not flag.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return word


class Count:
    """Counts the seconds' hundredths; a checkpoint keeps the count."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, flag: Path, starts: Path) -> int:
        with starts.open("a") as file:
            file.write(f"{self.number}\n")
        self.number += 1
        hold(flag)
        return self.number

    def checkpoint(self, flag: Path, starts: Path) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(self, flag, starts)


def until(what: str, found: Callable[[], object]) -> None:
    wait_until(what, found, PATIENCE_S, accept=bool)


def fits(executor: MonarchHpcExecutor) -> bool:
    """Whether its jobs can run."""
    try:
        return executor.submit(place).results() != []
    except (FailedSubmissionError, UncompletedJobError):
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def runs(job: submitit.Job[Any], flag: Path) -> None:
    until("the job's process", lambda: flag.with_suffix(".pid").exists() and job.state == "RUNNING")


def test_a_function_and_what_it_prints(executor: submitit.AutoExecutor, home: Path) -> None:
    executor.update_parameters(timeout_min=5, name="adder", slurm_partition="other")
    job = executor.submit(add, 5, 7)
    assert job.result() == 12 and job.exception() is None and job.done()
    until("the last state", lambda: job.state == "COMPLETED")
    assert "adding 5 and 7" in (job.stdout() or "") and "with care" in (job.stderr() or "")
    assert job.paths.folder == home / "log" / job.job_id
    assert job.submission().args == (5, 7)
    executor.update_parameters(stderr_to_stdout=True)
    job = executor.submit(add, 1, 2)
    assert job.result() == 3 and "with care" in (job.stdout() or "") and job.stderr() is None
    umask = os.umask(0o026)
    try:
        job = executor.submit(os.umask, 0)
    finally:
        os.umask(umask)
    assert job.result() == 0o026 and job.paths.stdout.stat().st_mode & 0o777 == 0o640


def test_what_prints_at_the_start_of_an_interpreter_is_no_answer(
    direct: MonarchHpcExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello\\n[]')\n")
    (broken := tmp_path / "broken-0.dist-info").mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0\n")
    (broken / "entry_points.txt").write_text("[submitit]\njob_environment = no_such_module:Nothing\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    assert direct.submit(add, 3, 4).result() == 7


def test_an_array_a_batch_and_asyncio(executor: submitit.AutoExecutor) -> None:
    jobs = executor.map_array(add, range(20), range(20))
    assert [job.result() for job in jobs] == [2 * number for number in range(20)]
    assert [job.job_id.partition("_")[2] for job in jobs] == [str(number) for number in range(20)]
    with executor.batch():
        batched = [executor.submit(add, number, 1) for number in range(3)]
    assert [job.result() for job in batched] == [1, 2, 3]
    assert executor.submit_array([lambda: "one"])[0].result() == "one"

    async def gather() -> list[int]:
        return await asyncio.gather(*(executor.submit(add, number, 2).awaitable().result(0.01) for number in range(3)))

    assert asyncio.run(gather()) == [2, 3, 4]


def test_tasks_on_two_hosts(executor: submitit.AutoExecutor) -> None:
    executor.update_parameters(nodes=2, tasks_per_node=2)
    job = executor.submit(place)
    assert job.num_tasks == 4
    hosts = ["localhost", "localhost"]  # as they reach each other
    assert job.results() == [(rank, rank // 2, rank % 2, 4, 2, hosts) for rank in range(4)]
    assert job.task(3).result() == (3, 1, 1, 4, 2, hosts)
    assert job.get_info()["NodeList"] in ("local0,local1", "")
    executor.update_parameters(nodes=3)
    with pytest.raises(FailedSubmissionError, match=r"needs 3 hosts .* the allocation has 2 such hosts of 2"):
        executor.submit(place)


def test_a_folder_that_others_may_write_is_refused(direct: MonarchHpcExecutor, home: Path) -> None:
    job = direct.submit(add, 3, 4)
    assert job.result() == 7
    files = [job.paths.submitted_pickle, job.paths.result_pickle]
    assert [path.stat().st_mode & 0o777 for path in (home / "direct", *files)] == [0o700, 0o600, 0o600]
    before = sorted((home / "direct").iterdir())
    (home / "direct").chmod(0o777)
    try:
        with pytest.raises(ConfigError, match=f"chmod go-w {home}/direct"):
            direct.submit(add, 3, 4)
    finally:
        (home / "direct").chmod(0o700)
    assert sorted((home / "direct").iterdir()) == before


def test_exceptions_and_deaths_are_reported_as_submitit_reports_them(executor: submitit.AutoExecutor) -> None:
    failed, killed = executor.submit(fail), executor.submit(die)
    with pytest.raises(FailedJobError, match="ValueError: on purpose"):
        failed.result()
    until("the last state", lambda: failed.state == "FAILED")
    error = killed.exception()
    assert type(error) is UncompletedJobError and "has not produced any output (state: FAILED)" in str(error)
    assert killed.get_info()["Reason"] == "signal 9 (SIGKILL)"


def test_a_job_is_cancelled_while_it_waits_and_while_it_runs(direct: MonarchHpcExecutor, tmp_path: Path) -> None:
    direct.update_parameters(array_parallelism=1)
    first, second, third = direct.map_array(hold, [tmp_path / name for name in "abc"])
    runs(first, tmp_path / "a")
    assert second.state == "PENDING" and not (tmp_path / "b.pid").exists()
    third.cancel()
    until("its state", lambda: third.state == "CANCELLED")  # which is written after the answer
    first.cancel()
    assert "(state: CANCELLED)" in str(first.exception())
    (tmp_path / "b").touch()
    assert second.result() == ""
    first.cancel()  # it has ended: no error


def test_a_job_is_over_at_its_time_limit(direct: MonarchHpcExecutor, tmp_path: Path) -> None:
    direct.update_parameters(timeout_min=0.04, signal_delay_s=0)
    job = direct.submit(hold, tmp_path / "never")
    error = job.exception()
    assert isinstance(error, UncompletedJobError)
    # The signal and the end come together: either one's words are in the error.
    assert "timed-out and not checkpointable" in str(error) or job.state == "TIMEOUT"


def test_a_job_that_stops_its_fork_server_is_over_at_its_time_limit(direct: MonarchHpcExecutor) -> None:
    direct.update_parameters(timeout_min=0.04, signal_delay_s=0)
    job = direct.submit(stop_parent)
    until("the end of the job", lambda: job.state == "TIMEOUT")
    direct.update_parameters(timeout_min=5)
    assert direct.submit(add, 3, 4).result() == 7


def test_a_checkpoint_goes_on_where_it_was(direct: MonarchHpcExecutor, tmp_path: Path) -> None:
    job: Any = direct.submit(Count(), tmp_path / "flag", tmp_path / "starts")
    runs(job, tmp_path / "flag")
    until("the signal's handler", lambda: "Loading pickle" in (job.stdout() or job.stderr() or ""))
    job._interrupt()
    until("another process", lambda: (tmp_path / "starts").read_text() == "0\n1\n")
    (tmp_path / "flag").touch()
    assert job.result() == 2
    assert (tmp_path / "starts").read_text() == "0\n1\n"
    assert "Exiting gracefully after preemption/timeout" in (job.stdout() or "") + (job.stderr() or "")


def test_jobs_outlive_their_client_and_others_find_them(home: Path, tmp_path: Path) -> None:
    client = subprocess.run(
        [sys.executable, "-c", CLIENT, str(home / "log2"), str(tmp_path / "flag")],
        stdout=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )
    assert client.returncode == -signal.SIGKILL
    job = MonarchHpcJob[str](home / "log2", client.stdout.decode().strip())
    runs(job, tmp_path / "flag")
    (tmp_path / "flag").touch()
    assert job.result() == "kept"
    unknown = MonarchHpcJob[str](home / "log2", "m000000000000")
    assert unknown.state == "UNKNOWN" and not unknown.done()
    with pytest.raises(AllocationError, match="was not submitted with the folder"):
        unknown.cancel()
    leave_services()


CLIENT = """
import os, signal, sys
from pathlib import Path
from monarch_hpc.submitit.executor import MonarchHpcExecutor
from monarch_hpc.testing import wait_until

def hold(flag):
    flag.with_suffix(".pid").touch()
    wait_until("the flag", flag.exists, 60.0)
    return "kept"

print(MonarchHpcExecutor(sys.argv[1]).submit(hold, Path(sys.argv[2])).job_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_other_clusters_see_no_change(executor: submitit.AutoExecutor, home: Path) -> None:
    assert executor.cluster == "monarch_hpc"
    assert submitit.AutoExecutor.which() in ("local", "slurm")
    debug = submitit.AutoExecutor(home / "debug", cluster="debug")
    debug.update_parameters(timeout_min=1, slurm_array_parallelism=3)
    with pytest.warns(UserWarning, match="Use 'slurm_array_parallelism' instead"):
        debug.update_parameters(array_parallelism=2)


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"nodes": 0}, ValueError, "nodes is 0"),
        ({"tasks_per_node": True}, TypeError, "tasks_per_node"),
        ({"timeout_min": float("nan")}, ValueError, "timeout_min is nan"),
        ({"signal_delay_s": "9"}, TypeError, "signal_delay_s is '9'"),
        ({"mem": "4GB"}, ValueError, "Unavailable parameter.*'mem'.*mem_gb"),
    ],
)
def test_wrong_parameters_are_refused(
    direct: MonarchHpcExecutor, parameters: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        direct.update_parameters(**parameters)


def test_when_a_runner_or_the_service_dies_its_jobs_have_ended_and_others_run(
    direct: MonarchHpcExecutor, home: Path, tmp_path: Path
) -> None:
    lost = direct.submit(hold, tmp_path / "lost")
    runs(lost, tmp_path / "lost")
    pid = int((tmp_path / "lost.pid").read_text())
    os.kill(parent(parent(pid)), signal.SIGKILL)  # the runner: as if the host were gone
    until("the job's state", lambda: lost.state == "NODE_FAIL")
    until("the end of its process", lambda: not alive(pid))
    direct.update_parameters(nodes=2)
    until("another runner there", lambda: fits(direct))
    direct.update_parameters(nodes=1)
    job = direct.submit(hold, tmp_path / "never")
    runs(job, tmp_path / "never")
    status = query_status(home / "allocation", PATIENCE_S)
    assert status is not None
    (run,) = status["runs"]
    os.kill(int(str(run["pid"])), signal.SIGKILL)
    until("the end of the service", lambda: read_exit(home / "allocation", str(run["run"])))
    until("the job's state", lambda: job.done() and job.state == "NODE_FAIL")
    assert "has not produced any output (state: NODE_FAIL)" in str(job.exception())
    job.cancel()  # nobody is there any more: no error
    assert direct.submit(add, 2, 3).result() == 5
