"""Attacks by another user of the same primary group, in folders that the group may write."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_hpc.config.load import load_config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import open_output, private_dir, read_private, write_private
from monarch_hpc.core.storage.scratch import PREFIX, make_scratch, sweep_scratch
from monarch_hpc.job import LocalJob, job_load, load_current_job, set_current_job
from tests.system.job.test_jobs import HEAD
from tests.system.support.colleague import GID, UID, act, needs_root, shared
from tests.system.support.programs import Programs, programs

__all__ = ["programs", "shared"]

pytestmark = needs_root


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of this user that must not change."""
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


def test_a_module_in_the_working_folder_is_not_taken_for_one_of_ours(programs: Programs, shared: Path) -> None:
    names = ("queue", "random", "json", "monarch_hpc", "numpy")
    act("".join(f'echo \'open("{shared}/ran-{name}", "w")\' > {name}.py; ' for name in names), shared)
    program = HEAD + f"os.chdir({str(shared)!r})\n"
    program += "job = ProcessJob({'a': 2})\nstate = job.state(cached_path=None)\n"
    program += "print(len(state.a.spawn_procs().spawn('where', Where).where.call().get()))\n"
    assert programs.run(program).splitlines()[-1] == "2"
    assert not list(shared.glob("ran-*"))


PLANTED = {
    "a folder of theirs": "mkdir -m 777 .monarch; echo pdb.set_trace > .monarch/spec; touch .monarch/job_state.pkl",
    "a link of theirs to theirs": "mkdir -m 755 own; echo pdb.set_trace > own/spec; ln -s own .monarch",
    "a link of theirs to ours": "ln -s {ours} .monarch",
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_job_that_a_colleague_planted_is_refused(
    planted: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = private_dir(tmp_path / "ours")
    write_private(ours / "spec", b"precious")
    act(PLANTED[planted].format(ours=ours), shared)
    monkeypatch.chdir(shared)
    acts: list[Callable[[], object]] = [load_current_job, lambda: set_current_job("a.b"), LocalJob().state, job_load]
    for each in acts:
        with pytest.raises(ConfigError, match=f"{shared}/.monarch.*(symbolic link|user id {UID})"):
            each()
    assert os.listdir(ours) == ["spec"] and read_private(ours / "spec", 100) == b"precious"


def test_our_own_folder_in_a_shared_one_is_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared)
    set_current_job(f"{__name__}.LocalJob")
    LocalJob().dump(".monarch/job_state.pkl")
    with pytest.raises(subprocess.CalledProcessError):
        act("cat .monarch/spec", shared)
    assert isinstance(load_current_job(), LocalJob) and isinstance(job_load(), LocalJob)


def test_output_of_commands_is_not_written_through_what_a_colleague_planted(shared: Path, precious: Path) -> None:
    out = shared / "out"
    out.mkdir(mode=0o755)
    descriptor = open_output(out / "stdout.txt")
    os.write(descriptor, b"more than there will be")
    os.close(descriptor)
    os.close(open_output(out / "stdout.txt"))
    assert out.joinpath("stdout.txt").stat().st_mode & 0o777 == 0o600 and not (out / "stdout.txt").read_bytes()
    os.link(precious, out / "hard")
    os.symlink(precious, out / "link")
    os.mkfifo(out / "pipe")
    for name in ("hard", "link", "pipe"):
        with pytest.raises(ConfigError, match=f"{out}/{name}"):
            open_output(out / name)
    act(f"mkdir theirs; ln -s {out} way; ln -s {precious} stdout.txt", shared)
    for name in ("stdout.txt", "theirs/stdout.txt", "way/stdout.txt", "way/deeper/stdout.txt"):
        with pytest.raises(ConfigError):
            open_output(shared / name)
    assert precious.read_text() == "precious" and not (out / "deeper").exists()


def test_a_temporary_folder_that_a_colleague_could_exchange_is_refused(shared: Path, tmp_path: Path) -> None:
    ours = shared / "tmp"
    ours.mkdir()
    act("mkdir theirs; mkdir -m 1777 sticky; ln -s sticky link", shared)
    for place in (shared, ours, shared / "theirs", shared / "sticky", shared / "link"):
        with pytest.raises(ConfigError, match=r"is not safe for temporary files: it.*TMPDIR") as caught:
            make_scratch(place)
        assert caught.value.source.startswith(str(shared))
    assert not list(shared.rglob(f"{PREFIX}*"))
    # With the sticky bit only the owner can rename entries; a link of this user is safe, too.
    shared.chmod(0o3777)
    (tmp_path / "link").symlink_to(ours)
    folder, held = make_scratch(tmp_path / "link", "kind-")
    assert folder.parent == ours
    with pytest.raises(subprocess.CalledProcessError):
        act("mv tmp gone", shared)
    os.close(held)
    sweep_scratch(ours)
    assert not folder.exists()


def test_a_program_in_an_unsafe_temporary_folder_says_what_to_do(programs: Programs, shared: Path) -> None:
    program = HEAD + "LocalJob().state().hosts.spawn_procs()"
    output = programs.run(program, code=1, env={"TMPDIR": str(shared)})
    assert f"{shared}: is not safe for temporary files: it may be written by other users (mode 2775" in output
    assert (
        "let TMPDIR, and XDG_RUNTIME_DIR where it is set, name one that only you can write" in output
        and programs.procs() == []
    )


def test_a_file_in_a_folder_above_ends_no_command(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    act("echo 'slurm: {qos: theirs}' > monarch-hpc.yaml", shared)
    deep = shared / "ours"
    deep.mkdir()
    loaded = load_config({"HOME": "/nowhere"}, deep, "login1", None, {})
    assert loaded.config.slurm.qos is None
    assert [f"{shared}/monarch-hpc.yaml is not read" in record.getMessage() for record in caplog.records] == [True]


def test_an_own_configuration_that_the_common_group_may_write_is_refused(shared: Path) -> None:
    path = shared / "home" / ".config" / "monarch-hpc" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("agent: {prologue: [id]}\n")
    os.chown(path, -1, GID)
    path.chmod(0o664)
    act(f"echo 'agent: {{prologue: [touch /tmp/ran]}}' > {path}", shared)
    with pytest.raises(ConfigError, match=f"group id {GID}.*chmod go-w"):
        load_config({"HOME": str(shared / "home")}, Path("/"), "login1", None, {})


LIMITS = (
    HEAD
    + """
import resource, pathlib
def limit(pid): return next(l.split()[4] for l in open(f"/proc/{pid}/limits") if l.startswith("Max core file size"))
class Limit(Actor):
    @endpoint
    def mine(self): return limit(os.getpid()), limit(os.getppid())
    @endpoint
    def of_child(self): return os.popen("ulimit -S -c").read().strip()
job = ProcessJob({"a": 1})
actor = job.state(cached_path=None).a.spawn_procs().spawn("limit", Limit)
print("program", limit(os.getpid()), "proc and agent", actor.mine.call_one().get())
print("child", actor.of_child.call_one().get())
print("worker", *(limit(pid) for pid in job._pids))
"""
)


def test_our_processes_leave_no_core_dump_and_those_of_users_as_they_want(programs: Programs) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard != resource.RLIM_INFINITY and hard < 1 << 20:
        pytest.skip("core dumps are forbidden here altogether")
    wanted = 1 << 20
    resource.setrlimit(resource.RLIMIT_CORE, (wanted, hard))
    try:
        output = programs.run(LIMITS)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert f"program {wanted} proc and agent ('{wanted}', '1')" in output
    assert f"child {wanted // 512}" in output or f"child {wanted // 1024}" in output
    assert "worker 1" in output


def test_a_process_that_forbade_core_dumps_leaves_none(tmp_path: Path) -> None:
    program = "import os; from monarch_hpc.core.process.dumps import forbid_core_dumps as f; f(); os.abort()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == -signal.SIGABRT and list(tmp_path.iterdir()) == []
