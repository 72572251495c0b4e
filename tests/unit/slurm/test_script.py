"""The flags of a job come from the right sources, and every value is passed unchanged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch_hpc.allocation.files import write_left
from monarch_hpc.config import Config
from monarch_hpc.config.load import load_config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.commands.argv import flag_words
from monarch_hpc.slurm.script import Request, plan_job_flags, quoted, render_hook, render_script

ID = "0123456789abcdef0123456789abcdef"


def config(tmp_path: Path, flags: Mapping[str, object] | None = None) -> Config:
    return load_config(
        {"HOME": str(tmp_path)}, tmp_path, "login", None, {"agent.python": "/py", **(flags or {})}
    ).config


def request(**changes: object) -> Request:
    values: dict[str, object] = {"allocation": ID, "name": "dev", "directory": Path("/shared/01234567"), **changes}
    return Request(**values)  # type: ignore[arg-type]


def words(config: Config, request: Request) -> list[str]:
    return flag_words(plan_job_flags(config, request))


def test_the_flags_of_a_plain_request(tmp_path: Path) -> None:
    assert words(config(tmp_path), request()) == [
        "--job-name=mh-01234567",
        "--nodes=1",
        "--time=60",
        "--ntasks-per-node=1",
        "--signal=B:USR2@360",
        "--output=/shared/01234567/slurm.out",
        "--no-kill",
        "--no-requeue",
        "--exclusive",
    ]


def test_keys_of_the_configuration_become_flags(tmp_path: Path) -> None:
    keys = {"partition": "p", "qos": "q", "account": "a", "constraint": "c&d", "reservation": "r", "time_min": 5}
    found = words(config(tmp_path, {f"slurm.{key}": value for key, value in keys.items()}), request(num_hosts="2-4"))
    wanted = [
        "--nodes=2-4",
        "--time=5",
        "--partition=p",
        "--account=a",
        "--qos=q",
        "--constraint=c&d",
        "--reservation=r",
    ]
    assert [word for word in wanted if word not in found] == []


def test_a_profile_drops_and_changes_any_flag(tmp_path: Path) -> None:
    flags = {
        "no-kill": None,
        "no-requeue": False,
        "exclusive": "user",
        "ntasks-per-node": None,
        "time": None,
        "signal": None,
        "nodes": 3,
    }
    found = words(config(tmp_path, {"slurm.job_flags": flags}), request())
    assert found == [
        "--job-name=mh-01234567",
        "--nodes=3",
        "--output=/shared/01234567/slurm.out",
        "--exclusive=user",
    ]


@pytest.mark.parametrize(
    ("ntasks", "num_hosts", "expected"),
    [
        ("per-node", "4", ["--ntasks-per-node=1"]),
        ("both", "4", ["--ntasks-per-node=1", "--ntasks=4"]),
        ("both", "2-4", ["--ntasks-per-node=1"]),
        ("none", "4", []),
    ],
)
def test_tasks_are_asked_for_as_the_site_wants(
    tmp_path: Path, ntasks: str, num_hosts: str, expected: list[str]
) -> None:
    found = words(config(tmp_path, {"slurm.ntasks": ntasks}), request(num_hosts=num_hosts))
    assert [word for word in found if "ntasks" in word] == expected


@pytest.mark.parametrize(
    ("account", "gpus", "expected"), [("m1", "4", "m1_g"), ("m1_g", "4", "m1_g"), ("m1", None, "m1"), (None, "4", None)]
)
def test_gpu_hours_are_charged_to_the_account_for_them(
    tmp_path: Path, account: str | None, gpus: str | None, expected: str | None
) -> None:
    keys = {"slurm.account": account, "slurm.account_suffix": "_g"}
    assert plan_job_flags(config(tmp_path, keys), request(gpus_per_node=gpus))["account"] == expected


def test_a_reservation_brings_its_qos_unless_one_is_named(tmp_path: Path) -> None:
    keys = {"slurm.reservation_qos": "reservation", "slurm.network": "job_vni"}
    assert "--qos=reservation" not in words(config(tmp_path, keys), request())
    found = words(config(tmp_path, {**keys, "slurm.reservation": "r"}), request())
    assert {"--qos=reservation", "--network=job_vni"} <= set(found)
    found = words(config(tmp_path, {**keys, "slurm.reservation": "r", "slurm.qos": "own"}), request())
    assert [word for word in found if "qos" in word] == ["--qos=own"]


def test_what_the_user_says_comes_last(tmp_path: Path) -> None:
    profile = config(tmp_path, {"slurm.job_flags": {"mem": 0}, "slurm.extra": ["--mem=1G", "--nice=5"]})
    found = words(profile, request(options=("--mem=2G",)))
    assert found[-2:] == ["--nice=5", "--mem=2G"]


@pytest.mark.parametrize(
    ("form", "flag"), [("gpus-per-node", "--gpus-per-node=a100:4"), ("gres", "--gres=gpu:a100:4"), ("none", None)]
)
def test_gpus_are_asked_for_in_the_sites_form(tmp_path: Path, form: str, flag: str | None) -> None:
    found = words(config(tmp_path, {"slurm.gpus_form": form}), request(gpus_per_node="a100:4"))
    assert [word for word in found if "a100" in word] == ([flag] if flag else [])


@pytest.mark.parametrize(
    "text", ["plain/a-b_c.d:e,f@g%h+i=j", "", "a b", "it's", 'a"b', "$(x) `y` \\", "#x", "é ü", "*?[a]"]
)
def test_a_quoted_text_is_one_word_for_the_shell(text: str) -> None:
    word = quoted(text)
    if word == text:
        assert shlex.quote(text) == text
    else:
        # Unquoting as in bash and sbatch; shlex handles only two of the four characters.
        assert re.sub(r'\\(["\\$`])', r"\1", word[1:-1]) == text
        assert not re.search(r'(?<!\\)(?:\\\\)*["$`]', word[1:-1])


@pytest.mark.parametrize("text", ["a\nb", "a\tb", "\x1b[31m", "a\u2028b"])
def test_control_characters_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        quoted(text)


def test_a_directory_is_not_taken_for_a_file_name_pattern(tmp_path: Path) -> None:
    found = words(config(tmp_path), request(directory=Path("/s/100%j/x y")))
    assert "--output=/s/100%%j/x y/slurm.out" in found
    with pytest.raises(ConfigError, match="backslash"):
        words(config(tmp_path), request(directory=Path("/s/a\\b/x")))


def test_no_placeholder_is_left_and_a_value_is_never_taken_for_one(tmp_path: Path) -> None:
    script = render_script(config(tmp_path), request(name="@{python}", directory=Path("/s/@{name}")))
    assert '\ndirectory="/s/@{name}"\n' in script
    assert "allocation '@{python}':" in script
    assert "@{" not in script.replace("@{name}", "").replace("@{python}", "")


def test_the_prologue_stands_before_the_step(tmp_path: Path) -> None:
    script = render_script(config(tmp_path, {"agent.prologue": ["module load cuda", "ulimit -c 0"]}), request())
    assert "\nmodule load cuda\nulimit -c 0\n" in script[: script.index("srun ")]


def test_the_sites_variables_do_not_replace_the_users(tmp_path: Path) -> None:
    text = 'a "b" $(touch x) `y` \\'
    script = render_script(config(tmp_path, {"agent.env": {"NCCL_NET": text, "FI_X": "1", "KEPT": "site"}}), request())
    lines = script[script.index("# Variables from") : script.index("# Commands from")]
    shown = subprocess.run(
        ["bash", "-c", lines + "printenv NCCL_NET FI_X; echo ${KEPT-unset}."],
        env={"PATH": os.environ["PATH"], "KEPT": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown == f"{text}\n1\n.\n"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("lines", "status", "printed"),
    [
        (["false || true", "export A=1", "f() { false; true; }", "f"], 3, "A is 1\n"),
        (["true", "(exit 5)", "echo not here"], 72, "monarch-hpc: agent.prologue failed with status 5: ( exit 5 )\n"),
        (["exit 7"], 7, ""),
        (["sleep 600"], 72, "monarch-hpc: agent.prologue took longer than 1 s (config key agent.hook_s)\n"),
    ],
    ids=["ends", "fails", "exits", "hangs"],
)
def test_a_hook_runs_in_the_scripts_shell(tmp_path: Path, lines: list[str], status: int, printed: str) -> None:
    text = render_hook(config(tmp_path, {"agent.prologue": lines, "agent.hook_s": 1}).agent, "prologue")
    # In a group of its own: at its limit the group is signalled.
    done = subprocess.run(
        ["bash", "-c", f'trap "exit 9" TERM\n{text}\necho "A is $A"\nexit 3'],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.removeprefix("Alarm clock\n")) == (status, printed)
    assert render_hook(config(tmp_path).agent, "epilogue") == "# (nothing)"


def test_a_prefix_stands_before_the_agent(tmp_path: Path) -> None:
    script = render_script(config(tmp_path, {"agent.prefix": ["apptainer", "exec", "a b.sif"]}), request())
    assert 'agent=(\n    apptainer exec "a b.sif" bash "$home/agent.sh" /py\n' in script


def test_without_step_flags_the_step_is_still_one_command(tmp_path: Path) -> None:
    off = dict.fromkeys(config(tmp_path).slurm.step_flags)
    script = render_script(config(tmp_path, {"slurm.step_flags": off}), request())
    lines = script[script.index("flags=(") : script.index("steps=()")]
    shown = subprocess.run(["bash", "-c", f'{lines}echo "${{#flags[@]}}"'], capture_output=True, text=True, check=True)
    assert shown.stdout == "0\n"


def test_the_step_keeps_slurms_essential_variables(tmp_path: Path) -> None:
    script = render_script(config(tmp_path), request())
    names = script[script.index("for name in") : script.index("do\n    unset")].split()
    assert {"CPUS_PER_TASK", "GPUS", "NTASKS", "EXACT", "HINT", "TRES_PER_TASK", "EXPORT_ENV"} <= set(names)
    assert not {"CONF", "JOB_ID", "JOB_NODELIST", "JOB_NUM_NODES", "NETWORK"} & set(names)


def test_a_signal_to_all_processes_of_the_script_leaves_a_whole_last_word(tmp_path: Path) -> None:
    """Slurm may signal each process: what is started after that must not end by it."""
    directory, commands = tmp_path / "allocation", tmp_path / "bin"
    (directory / "attempts").mkdir(parents=True)
    (directory / "key").touch()
    commands.mkdir()
    signalled = shlex.quote(str(tmp_path / "signalled"))
    for name, text in {
        # As if the signal arrived while the last file is written.
        "srun": f"touch {signalled}; exit 3",
        "date": 'kill -TERM $$; exec /bin/date "$@"',
        "mv": f'[ ! -e {signalled} ] || kill -TERM $$; exec /bin/mv "$@"',
    }.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    script = render_script(config(tmp_path), request(directory=directory))
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_NNODES": "1"}
    env = {"PATH": f"{commands}:{os.environ['PATH']}", **job}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    files = directory / "attempts/1"
    assert json.loads((files / "granted.json").read_text())["job_id"] == 7
    assert json.loads((files / "ended.json").read_text())["exit_status"] == 3


def test_an_srun_that_does_not_notice_the_end_of_its_tasks_is_not_waited_for(tmp_path: Path) -> None:
    """Its connections were cut for a while; Slurm would kill it after KillWait, for which `release` waited."""
    directory, commands = tmp_path / "allocation", tmp_path / "bin"
    (directory / "attempts").mkdir(parents=True)
    (directory / "key").touch()
    commands.mkdir()
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    srun = f"#!/bin/bash\ntrap '' TERM; echo begun > {shlex.quote(str(begun))}; while :; do sleep 60; done\n"
    (commands / "srun").write_text(srun)
    (commands / "srun").chmod(0o755)
    script = render_script(config(tmp_path), request(directory=directory))
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_NNODES": "1"}
    env = {"PATH": f"{commands}:{os.environ['PATH']}", **job}
    batch = subprocess.Popen(["bash", "-c", script], env=env, start_new_session=True)
    try:
        assert begun.read_text() == "begun\n"
        write_left(directory / "attempts/1")  # by the head
        batch.terminate()  # by scancel
        assert batch.wait(60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(batch.pid, signal.SIGKILL)
    assert json.loads((directory / "attempts/1/ended.json").read_text())["exit_status"] == 0


@pytest.mark.parametrize(
    ("grown", "left", "name"), [(True, False, "parted"), (True, True, "ended"), (False, False, "ended")]
)
def test_the_end_of_the_first_job_is_not_that_of_a_grown_allocation(
    tmp_path: Path, name: str, *, grown: bool, left: bool
) -> None:
    directory, commands = tmp_path / "allocation", tmp_path / "bin"
    for folder in (directory / "attempts", commands):
        folder.mkdir(parents=True)
    (directory / "key").touch()
    folder = directory / "attempts/1"
    srun = f"#!/bin/bash\n{f'mkdir {folder}/jobs' if grown else ''}\n{f'touch {folder}/left.json' if left else ''}\n"
    (commands / "srun").write_text(srun)
    (commands / "srun").chmod(0o755)
    script = render_script(config(tmp_path), request(directory=directory))
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_NNODES": "1"}
    env = {"PATH": f"{commands}:{os.environ['PATH']}", **job}
    done = subprocess.run(["bash", "-c", script], env=env, start_new_session=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (folder / f"{name}.json").exists() and not (
        folder / f"{'ended' if name == 'parted' else 'parted'}.json"
    ).exists()
    again = subprocess.run(["bash", "-c", script], env=env, start_new_session=True, check=False, capture_output=True)
    assert again.returncode == 0 and (b"goes on without this job" in again.stderr) is (name == "parted")
    assert (directory / "attempts/2").exists() is (name == "ended")
