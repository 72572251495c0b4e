"""Configuration files that other users may have written, or that are crafted to exhaust memory."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from textwrap import indent

import pytest

from monarch_hpc.core.errors import ConfigError
from tests.unit.config.test_load import home, load, write_project, write_user

__all__ = ["home"]


def test_an_own_file_that_the_group_may_write_is_refused_unless_it_is_the_users_own_group(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_user(home, "agent: {prologue: [id]}\n")
    path.chmod(0o664)
    group = path.stat().st_gid
    user = pwd.struct_passwd(("alice", "x", os.geteuid(), group, "", str(home), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: user)
    for name, members in (("users", []), ("alice", ["bob"]), ("alice", ["alice", "bob"])):
        monkeypatch.setattr(grp, "getgrgid", lambda gid, n=name, m=members: grp.struct_group((n, "x", gid, m)))
        with pytest.raises(ConfigError, match=r"mode 0664, group id \d+\); look at what is in it.*chmod go-w"):
            load(home)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("alice", "x", gid, ["alice"])))
    assert load(home).config.agent.prologue == ("id",)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_project_is_not_looked_for_from_a_folder_upwards_that_others_may_write(
    home: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_project(home, "slurm: {qos: project}\n")
    deep = path.parent / "deep"
    path.parent.chmod(mode)
    for _ in range(2):
        assert load(home, cwd=deep).config.slurm.qos is None
    warning = (
        f"{path} is not read, because {path.parent} may be written by other users; copy the settings that you want"
    )
    assert [record.getMessage().startswith(warning) for record in caplog.records] == [True]
    path.unlink()
    (home / "monarch-hpc.yaml").write_text("slurm: {qos: above}\n")
    assert load(home, cwd=deep).config.slurm.qos is None and len(caplog.records) == 2
    path.parent.chmod(0o755)
    assert load(home, cwd=deep).config.slurm.qos == "above"


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghijklmno", "bcdefghijklmnop", strict=True)
)


@pytest.mark.parametrize("text", [BOMB, f"match:\n{indent(BOMB, '  ')}", "\nslurm: {extra: [&a x, *a]}\n"])
def test_a_text_that_stands_for_a_huge_value_is_refused_at_once(home: Path, text: str) -> None:
    path = write_project(home, text)
    with pytest.raises(ConfigError, match=r"an alias \(\*name\) is not supported") as caught:
        load(home, cwd=path.parent)
    assert caught.value.source == f"{path}:{3 if text.startswith('match') else 2}"
    with pytest.raises(ConfigError, match="alias"):
        load(home, {"MONARCH_HPC_SLURM__EXTRA": "[&a x, *a]"})
