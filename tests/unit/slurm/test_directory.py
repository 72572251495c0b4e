"""Files in an allocation's directory are parsed as they were written."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from monarch_hpc.allocation.files import Granted
from monarch_hpc.allocation.ready import render_ready, write_ready
from monarch_hpc.allocation.settings import name_of
from monarch_hpc.config.load import load_config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.directory import Seen, lines_by_host, look, prepare, tail
from tests.unit.slurm.makers import ready

OUTPUT = """\
srun: cluster configuration lacks support for cpu binding
0: agent n1: listening
2: Traceback (most recent call last):
2: ImportError: no module named 'x'
1:
srun: error: n3: task 2: Exited with exit code 1
slurmstepd: error: n3 is low on memory
srun: error: Task launch for StepId=5.0 failed on node n4: Communication connection failure
srun: error: n31: task 9: Exited with exit code 1
7: a rank that no host has
"""


def test_the_last_words_of_each_host_are_its_own_lines_and_those_about_it() -> None:
    assert lines_by_host(OUTPUT, ["n1", "n2", "n3", "n4"], num_lines=3) == {
        "n1": ("agent n1: listening",),
        "n2": (),
        "n3": (
            "ImportError: no module named 'x'",
            "srun: error: n3: task 2: Exited with exit code 1",
            "slurmstepd: error: n3 is low on memory",
        ),
        "n4": ("srun: error: Task launch for StepId=5.0 failed on node n4: Communication connection failure",),
    }


def test_labels_may_be_padded() -> None:
    assert lines_by_host(" 1: a\n01: b\n10: c\n", [f"n{i}" for i in range(11)], 5)["n1"] == ("a", "b")


def test_a_file_that_is_not_there_has_no_tail(tmp_path: Path) -> None:
    assert tail(tmp_path / "x", 3) == ()
    (tmp_path / "x").write_bytes(b"a\nb\n\n\xff\nd\n")
    assert tail(tmp_path / "x", 3) == ("b", "\N{REPLACEMENT CHARACTER}", "d")


def test_a_prepared_directory_is_ours_alone_and_shows_nothing_yet(tmp_path: Path) -> None:
    config = load_config({"HOME": "/h"}, Path("/"), "login", None, {}).config
    directory = tmp_path / "a b" / "01234567"
    script = prepare(directory, config, b"k" * 32, "#!/bin/bash\n", "dev")
    assert name_of(directory) == "dev"
    assert script == directory / "job.sh" and script.read_text() == "#!/bin/bash\n"
    names = {"agent.sh", "attempts", "config.json", "job.sh", "key", "runs", "task.sh", "holder.sh"}
    assert {path.name for path in directory.iterdir()} == names
    assert [path for path in [directory, *directory.rglob("*")] if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert look(directory) == Seen()


def test_a_directory_that_is_not_there_shows_nothing(tmp_path: Path) -> None:
    assert look(tmp_path / "x") == Seen()


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    path.chmod(0o600)


def test_everything_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "1"
    write(folder / "granted.json", {"schema": 1, "job_id": 7, "nodelist": "n[1-2]", "restarts": 0, "time_s": 1000})
    write(folder / "hosts" / "0.json", {})
    write(folder / "hosts" / ".1.json.tmp", {})
    write_ready(folder, ready(["n1"], ["n2"]))
    write(folder / "ended.json", {"schema": 1, "job_id": 7, "exit_status": 3, "time_s": 1001})
    assert look(tmp_path) == Seen(
        Granted(7, ("n1", "n2"), "n[1-2]", 1000.0),
        frozenset({0}),
        ready(["n1"], ["n2"]),
        3,
        1,
    )


def test_only_the_newest_attempt_is_seen(tmp_path: Path) -> None:
    for number in (1, 9, 10):
        (tmp_path / "attempts" / str(number)).mkdir(parents=True)
        assert look(tmp_path) == Seen(attempt=number)
        granted = {"schema": 1, "job_id": 7, "nodelist": "n1", "restarts": number, "time_s": 1000}
        write(tmp_path / "attempts" / str(number) / "granted.json", granted)
        write(tmp_path / "attempts" / str(number) / "ended.json", {"schema": 1, "exit_status": 143})
        assert look(tmp_path) == Seen(Granted(7, ("n1",), "n1", 1000.0, number), exit_status=143, attempt=number)
    # Files that processes of an earlier attempt still write.
    write_ready(tmp_path / "attempts" / "9", ready([]))
    assert look(tmp_path).ready is None


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("granted.json", {"schema": 1}),
        ("granted.json", {"schema": 1, "job_id": "7", "nodelist": "n1", "time_s": 1}),
        ("granted.json", {"schema": 1, "job_id": 7, "nodelist": "$(x)", "restarts": 0, "time_s": 1}),
        ("granted.json", {"schema": 1, "job_id": 7, "nodelist": "n1", "restarts": "", "time_s": 1}),
        ("ready.json", {"schema": 2, **render_ready(ready(["n1"]))}),
        ("ready.json", {"schema": 1, **render_ready(ready(["n1"])), "hosts": [1]}),
        ("ready.json", {"schema": 1, **render_ready(ready(["n1"])), "missing": [1]}),
        ("ended.json", ["schema", 1]),
    ],
)
def test_what_nobody_of_ours_wrote_is_refused(tmp_path: Path, name: str, document: object) -> None:
    write(tmp_path / "attempts" / "1" / name, document)
    with pytest.raises(ConfigError):
        look(tmp_path)
