"""The lab is a real cluster to ordinary users, injects faults on request, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monarch_hpc.core.errors import LabError
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab import SlurmLab
from tests.child import child

HOSTS = ("n1", "n2", "n3", "n4")


def lines_of(lab: SlurmLab, *argv: str, user: str = "alice", host: str = "login") -> list[str]:
    return sorted(lab.run(argv, user, host, check=True).stdout.splitlines())


# ---- a cluster


def test_four_hosts_are_idle(lab: SlurmLab) -> None:
    assert lab.hosts == HOSTS
    assert lab.node_states() == dict.fromkeys(HOSTS, "idle")


def test_every_host_has_its_own_name_address_and_tmp(lab: SlurmLab) -> None:
    script = "touch /tmp/seen-on-$(hostname); echo $(hostname) $(hostname -I) $(cat /etc/hostname) $(ls -d /tmp/seen*)"
    assert lines_of(lab, "srun", "-N4", "bash", "-c", script) == [
        f"n{number} 10.177.0.{10 + number} n{number} /tmp/seen-on-n{number}" for number in (1, 2, 3, 4)
    ]
    assert [lab.address(host) for host in ("login", "n4")] == ["10.177.0.1", "10.177.0.14"]


def test_alice_is_an_ordinary_user_with_a_fresh_environment(lab: SlurmLab) -> None:
    uid, *environment = lab.run(["sh", "-c", "id -u; env"], check=True).stdout.splitlines()
    assert uid == str(lab.settings.uids["alice"]) != "0"
    names = {line.partition("=")[0] for line in environment}
    of_bash = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert names - of_bash == {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TERM"}
    assert f"HOME={lab.home()}" in environment
    assert lab.run(["scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=x"]).returncode != 0


def test_alice_runs_our_interpreter_and_packages_on_every_host(lab: SlurmLab) -> None:
    code = "import monarch_hpc, numpy, sys; print(sys.executable)"
    assert lines_of(lab, "srun", "-N4", sys.executable, "-c", code) == [sys.executable] * 4
    assert lines_of(lab, "which", "python") == [str(Path(sys.executable).with_name("python"))]


def test_a_batch_job_is_queued_runs_and_is_known_to_slurm(lab: SlurmLab) -> None:
    job = lab.run(
        ["sbatch", "--parsable", "-wn[1-2]", "--wrap", "srun hostname; exec sleep 300"], check=True
    ).stdout.strip()
    output = lab.home() / f"slurm-{job}.out"
    wait_until(
        "both hosts' names", lambda: output.exists() and output.read_text().split(), accept=lambda w: w and len(w) == 2
    )
    assert lines_of(lab, "squeue", "--me", "-h", "-o", "%i,%T,%N") == [f"{job},RUNNING,n[1-2]"]
    assert "JobState=RUNNING" in lab.run(["scontrol", "show", "job", job], check=True).stdout
    lab.run(["scancel", job], check=True)
    wait_until("an empty queue", lambda: lines_of(lab, "squeue", "-h"), accept=lambda lines: not lines)
    assert lab.run(["sbatch", "--wait", "--wrap", "exit 7"]).returncode == 7


def test_granted_gpus_are_named_to_the_job(lab: SlurmLab) -> None:
    show = ["bash", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert lines_of(lab, "srun", "-N2", "--gpus-per-node=2", *show) == ["0,1", "0,1"]
    assert lines_of(lab, "srun", "--gpus-per-node=4", *show) == ["0,1,2,3"]
    assert lab.run(["srun", "--gpus-per-node=5", *show]).returncode != 0


def test_the_reservation_takes_alice_and_refuses_bob(lab: SlurmLab) -> None:
    reserved = ["srun", "-w", "n4", "--reservation=maint", "sh", "-c", "hostname; echo $SLURM_JOB_RESERVATION"]
    assert lines_of(lab, *reserved) == ["maint", "n4"]
    refused = lab.run(reserved, user="bob")
    assert refused.returncode == 1
    assert "reservation" in refused.stderr


def test_partitions_refuse_what_they_must(lab: SlurmLab) -> None:
    restricted = ["srun", "-w", "n1", "-p", "vip", "hostname"]
    assert "group not permitted" in lab.run(restricted).stderr
    assert lines_of(lab, *restricted, user="bob") == ["n1"]
    assert "time limit" in lab.run(["srun", "-p", "short", "-t", "10", "hostname"]).stderr
    # Named: the host may still clean up after bob's job, and then any other would do.
    assert lines_of(lab, "srun", "-w", "n1", "-p", "low", "hostname") == ["n1"]


def test_bob_cannot_read_alices_home(lab: SlurmLab) -> None:
    lab.run(["sh", "-c", "echo x > secret"], check=True)
    secret = lab.home("alice") / "secret"
    for host in ("login", "n2"):
        assert lab.run(["cat", secret], "alice", host).stdout == "x\n"
        assert "Permission denied" in lab.run(["cat", secret], "bob", host).stderr
        assert "Permission denied" in lab.run(["touch", f"{secret}2"], "bob", host).stderr


# ---- commands


def test_a_command_gets_stdin_environment_and_folder_and_tells_its_status(lab: SlurmLab) -> None:
    done = lab.run(
        ["sh", "-c", "cat; echo $X; pwd; exit 3"], host="n1", stdin="in\n", env={"X": "1"}, folder=Path("/etc")
    )
    assert (done.returncode, done.stdout) == (3, "in\n1\n/etc\n")
    assert lab.run(["sh", "-c", "kill -SEGV $$"]).returncode == -signal.SIGSEGV
    with pytest.raises(subprocess.CalledProcessError):
        lab.run(["false"], check=True)


def test_signals_reach_the_command_not_its_doorman(lab: SlurmLab) -> None:
    loop = "trap 'echo stopped; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    with lab.popen(["bash", "-c", loop]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.signal_group(signal.SIGINT)
        assert process.communicate(timeout=180)[0] == "stopped\n"
        assert process.returncode == 5


def test_a_command_over_its_time_is_killed_with_its_children(lab: SlurmLab) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run(["sh", "-c", "sleep 4711 & wait"], timeout_s=0.3)
    wait_until("no process of alice", lambda: lab.processes("alice"), accept=lambda found: not found)


# ---- faults


def hardware_addresses(lab: SlurmLab) -> list[str]:
    return [
        lab.run(["cat", f"/sys/class/net/{interface}/address"], host=host, check=True).stdout
        for host, interface in (("n3", "eth0"), ("login", "br0"))
    ]


def test_a_host_without_power_is_silent_and_boots_again(lab: SlurmLab) -> None:
    # Neighbours keep sending to the address that they remember, for ten seconds and more.
    addresses = hardware_addresses(lab)
    with lab.popen(["sleep", "4711"], host="n3") as process:
        wait_until("the sleep", lambda: lab.processes("alice", "n3"), accept=lambda found: "sleep 4711" in str(found))
        lab.kill_host("n3")
        assert process.wait(60) == -signal.SIGKILL
    assert not lab.is_up("n3")
    with pytest.raises(LabError, match="has no power"):
        lab.run(["true"], host="n3")
    assert lines_of(lab, "srun", "-N3", "-x", "n3", "hostname") == ["n1", "n2", "n4"]
    lab.boot_host("n3")
    lab.wait_idle()
    assert lines_of(lab, "srun", "-w", "n3", "hostname") == ["n3"]
    assert hardware_addresses(lab) == addresses


def test_a_pulled_cable_cuts_a_host_off_but_leaves_it_running(lab: SlurmLab) -> None:
    def reaches_n2(timeout_s: int = 50) -> bool:
        return lab.run(["timeout", str(timeout_s), "bash", "-c", "</dev/tcp/n2/26818"]).returncode == 0

    assert reaches_n2()
    lab.link_down("n2")
    assert not reaches_n2(1)
    assert lab.run(["hostname"], host="n2").stdout == "n2\n"
    lab.link_up("n2")
    wait_until("n2 to be reached", reaches_n2)


def test_between_two_hosts_nothing_passes_while_both_reach_the_rest(lab: SlurmLab) -> None:
    def reaches(host: str, other: str, timeout_s: int = 50) -> bool:
        connect = ["timeout", str(timeout_s), "bash", "-c", f"</dev/tcp/{other}/26818"]
        return lab.run(connect, host=host).returncode == 0

    lab.cut("n2", "n3")
    assert [reaches("n2", "n3", 1), reaches("n3", "n2", 1)] == [False, False]
    assert [reaches("n2", "n1"), reaches("n3", "n4"), reaches("n4", "n2")] == [True, True, True]
    lab.join("n2", "n3")
    assert [reaches("n2", "n3"), reaches("n3", "n2")] == [True, True]
    lab.cut("n2", "n3")
    lab.reset()
    assert [reaches("n2", "n3"), reaches("n3", "n2")] == [True, True]
    with pytest.raises(LabError, match="login host"):
        lab.cut("login", "n2")


def test_jobs_outlive_slurmctld_and_slurmd(lab: SlurmLab) -> None:
    job = lab.run(["sbatch", "--parsable", "-w", "n2", "--wrap", "exec sleep 4711"], check=True).stdout.strip()

    def sleeps() -> bool:
        return "sleep 4711" in str(lab.processes("alice", "n2"))

    wait_until("the job", sleeps)
    # slurmctld saves what has changed every few seconds; killed earlier, it would not know that the job runs.
    state = lab.base / "state/job_state"
    lab.run(["scontrol", "update", f"JobId={job}", "Name=outlives"], check=True)
    wait_until("the job on record", lambda: state.exists() and b"outlives" in state.read_bytes())
    lab.kill_slurmctld()
    lab.kill_slurmd("n2")
    assert sleeps()
    with pytest.raises(LabError, match="no slurmd"):
        lab.kill_slurmd("n2")
    lab.start_slurmctld()
    lab.start_slurmd("n2")
    assert sleeps()
    assert lines_of(lab, "squeue", "-h", "-o", "%i,%T") == [f"{job},RUNNING"]


def test_the_login_host_cannot_be_switched_off(lab: SlurmLab) -> None:
    with pytest.raises(LabError, match="login host"):
        lab.kill_host("login")
    with pytest.raises(LabError, match="n1, n2, n3, n4"):
        lab.link_down("n9")


def test_a_user_added_to_the_machine_disturbs_no_host(lab: SlurmLab) -> None:
    # As useradd does: under its lock, a new file replaces the old one. Here both have the same content.
    with open("/etc/.pwd.lock", "a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for path in (Path("/etc/passwd"), Path("/etc/group")):
            renewed = path.with_suffix(".slurmlab")
            shutil.copy2(path, renewed)
            os.chown(renewed, path.stat().st_uid, path.stat().st_gid)
            renewed.replace(path)
    for host in ("login", *HOSTS):
        assert lab.run(["sh", "-c", "id -un; id -gn"], host=host, check=True).stdout == "alice\nalice\n"
    assert lines_of(lab, "srun", "-N4", "-l", "id", "-un") == [f"{rank}: alice" for rank in range(4)]


# ---- nothing is left behind


def traces_of(base: Path) -> list[str]:
    """Files, interfaces, and processes that have *base* mounted or name it, as every host of a lab does."""
    found = [str(base)] if base.exists() else []
    found += [name for name in os.listdir("/sys/class/net") if name == "br0" or name.startswith("to-n")]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            text = Path(f"/proc/{pid}/mountinfo").read_text() + Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except OSError:
            continue
        if str(base) in text:
            found.append(f"process {pid}")
    return found


def assert_gone(base: Path) -> None:
    wait_until(f"no trace of {base}", lambda: traces_of(base), 120.0, accept=lambda found: not found)


def command(runtime: Path, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "monarch_hpc.testing.slurmlab", *argv],
        env=os.environ | {"XDG_RUNTIME_DIR": str(runtime)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=240)
    return process.returncode, out


@pytest.fixture
def runtime(slurmlab: SlurmLab, tmp_path: Path) -> Path:
    """A folder for the test's own labs; depends on the session's lab, so that both are skipped together."""
    return tmp_path


def test_commands_make_use_and_end_a_lab_beside_another(runtime: Path) -> None:
    base = runtime / f"monarch-hpc-labs-{os.geteuid()}" / "lab"
    status, out = finish(command(runtime, "up", "-N", "2"))
    assert status == 0, out
    assert "exec -- srun -N2 hostname" in out
    assert traces_of(base)
    assert finish(command(runtime, "exec", "--", "srun", "-N2", "hostname")) in [(0, "n1\nn2\n"), (0, "n2\nn1\n")]
    assert finish(command(runtime, "on", "n2", "--user", "bob", "--", "sh", "-c", "id -un; exit 4")) == (4, "bob\n")
    assert finish(command(runtime, "kill-host", "n2")) == (0, "")
    assert "no power" in finish(command(runtime, "status"))[1]
    assert "up already" in finish(command(runtime, "up"))[1]
    left = command(runtime, "exec", "--", "sleep", "4711")
    wait_until("the sleep", lambda: "sleep 4711" in str(SlurmLab(base=base).processes("alice")))
    assert finish(command(runtime, "down")) == (0, "")
    assert finish(left)[0] == 128 + signal.SIGKILL
    assert_gone(base)
    assert "there is no lab" in finish(command(runtime, "down"))[1]


@pytest.mark.parametrize(
    "sign", ["slurmlab", "lab.json", "holders/login.json", "holders/n1.json", "log/slurmctld.log", "log/slurmd.n2.log"]
)
def test_a_start_killed_half_way_is_taken_down(runtime: Path, sign: str) -> None:
    base = runtime / f"monarch-hpc-labs-{os.geteuid()}" / "half"
    starter = command(runtime, "up", "--name", "half")
    wait_until(sign, (base / sign).exists, interval_s=0.001)
    starter.kill()
    finish(starter)
    assert finish(command(runtime, "down", "--name", "half")) == (0, "")
    assert_gone(base)


def test_after_a_killed_start_the_name_can_be_used_again(runtime: Path) -> None:
    base = runtime / f"monarch-hpc-labs-{os.geteuid()}" / "half"
    starter = command(runtime, "up", "--name", "half")
    wait_until("users' homes", (base / "home/bob").exists, interval_s=0.001)
    starter.kill()
    finish(starter)
    finish(command(runtime, "down", "--name", "half"))
    assert finish(command(runtime, "up", "--name", "half", "-N", "1"))[0] == 0
    assert finish(command(runtime, "down", "--name", "half")) == (0, "")
    assert_gone(base)


def test_a_killed_pytest_leaves_no_process(runtime: Path) -> None:
    (runtime / "test_it.py").write_text(
        "import time\n"
        "from monarch_hpc.testing.fixtures import slurmlab\n"
        "def test_it(slurmlab):\n"
        "    slurmlab.kill_host('n2')\n"
        "    slurmlab.boot_host('n2')\n"
        "    slurmlab.popen(['srun', '-N4', 'sleep', '4711'])\n"
        "    print('base', slurmlab.base, flush=True)\n"
        "    time.sleep(600)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", str(runtime / "test_it.py")],
        env=os.environ | {"XDG_RUNTIME_DIR": str(runtime)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=runtime,
    )
    with child(started) as tested:
        assert tested.stdout is not None
        told = next((line for line in tested.stdout if line.startswith("base ")), "")
        tested.kill()
    base = Path(told.split()[1])
    wait_until("only files", lambda: traces_of(base), 120.0, accept=lambda found: found == [str(base)])
    assert finish(command(runtime, "down", "--all")) == (0, f"took down {base}\n")
    assert_gone(base)


def test_two_labs_show_closed_folders_read_only_and_keep_apart(slurmlab: SlurmLab, tmp_path: Path) -> None:
    shown = tmp_path / "closed" / "shown"
    shown.mkdir(parents=True)
    (shown / "file").write_text("x")
    (tmp_path / "closed" / "hidden").write_text("x")
    shown.parent.chmod(0o700)
    with SlurmLab("second", base=tmp_path / "lab", num_hosts=1, share=[shown], tied=True) as second:
        for host in ("login", "n1"):
            assert second.run(["cat", shown / "file"], host=host).stdout == "x"
            assert second.run(["ls", shown.parent], host=host).stdout == "shown\n"
            assert second.run(["touch", shown / "file"], "root", host).returncode != 0
        slurmlab.run(["touch", "mine"], check=True)
        assert second.run(["ls", "-A"], check=True).stdout == ""
        assert second.hosts == ("n1",)
        with pytest.raises(LabError, match="up already"):
            SlurmLab(base=tmp_path / "lab").up()
    assert_gone(tmp_path / "lab")
    assert (shown / "file").read_text() == "x"


def test_a_folder_with_other_files_is_no_base(runtime: Path) -> None:
    (runtime / "thesis").write_text("x")
    for act in (SlurmLab(base=runtime).up, SlurmLab(base=runtime).down):
        with pytest.raises(LabError, match="other files"):
            act()
    assert (runtime / "thesis").read_text() == "x"
