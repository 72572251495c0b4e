"""The administrators' folder: settings for all users, and profiles of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.config import shipped
from monarch_hpc.config.load import Loaded, load_config
from monarch_hpc.config.site_layer import ADMIN_FOLDER
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.assets import Folder, asset

HEAD = "site: ours\nchecked: 2026-01-01\nsource: its administrators\nmatch: {cluster: [ours]}\n"


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    folder = tmp_path / "monarch-hpc.d"
    folder.mkdir()
    return folder


def load(admin: Path, cluster: str | None = None, environ: dict[str, str] | None = None) -> Loaded:
    home = {"HOME": str(admin.parent / "home"), **(environ or {})}
    return load_config(home, Path("/"), "login", cluster, {}, admin=admin)


def test_the_folder_need_not_exist(tmp_path: Path) -> None:
    assert load(tmp_path / "none").config.site == "generic"
    assert Path("/etc/monarch-hpc.d") == ADMIN_FOLDER


def test_settings_come_after_the_profile_in_the_order_of_names_and_before_the_user(admin: Path) -> None:
    (admin / "20-later.yaml").write_text("slurm: {qos: later, partition: later, poll_max_s: 7}\n")
    (admin / "10-first.yaml").write_text("slurm: {qos: first, partition: first, account: first}\n")
    loaded = load(admin, "slurmlab", {"MONARCH_HPC_SLURM__PARTITION": "mine"})
    slurm = loaded.config.slurm
    assert (slurm.account, slurm.qos, slurm.partition, slurm.poll_max_s) == ("first", "later", "mine", 7)
    assert loaded.config.site == "slurmlab"
    assert loaded.origin("slurm.account") == f"{admin}/10-first.yaml:1"


def test_a_file_with_a_match_is_a_profile_and_replaces_ours_of_its_name(admin: Path) -> None:
    (admin / "ours.yaml").write_text(HEAD + "\nslurm: {qos: profile}\n")
    (admin / "lab.yaml").write_text(HEAD.replace("ours", "slurmlab") + "\nslurm: {qos: replaced}\n")
    assert load(admin).config.site == "generic"
    loaded = load(admin, "ours")
    assert (loaded.config.site, loaded.config.slurm.qos) == ("ours", "profile")
    assert loaded.profile is not None and loaded.profile.source == "its administrators"
    assert load(admin, "slurmlab").config.slurm.qos == "replaced"


def test_an_administrator_chooses_a_profile_where_none_matches(admin: Path) -> None:
    (admin / "site.yaml").write_text("site: vista\n")
    assert load(admin).config.slurm.nodelist_allowed is False
    assert load(admin, environ={"MONARCH_HPC_SITE": "generic"}).config.slurm.nodelist_allowed is True


def test_a_head_that_is_not_at_the_top_is_refused(admin: Path) -> None:
    (admin / "ours.yaml").write_text("slurm: {qos: profile}\n\n" + HEAD)
    with pytest.raises(ConfigError, match=r"ours\.yaml:\d+: checked = .*in its head"):
        load(admin)


def test_a_file_that_others_may_write_is_refused(admin: Path) -> None:
    path = admin / "all.yaml"
    path.write_text("slurm: {qos: q}\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="may have been written by another user"):
        load(admin)


def test_a_shipped_file_that_was_changed_is_parsed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "default.yaml"
    changed.write_text(asset("configs", "default.yaml").read_text().replace("time_min: 60", "time_min: 61"))

    def asset_or_changed(folder: Folder, name: str = "") -> Path:
        return changed if name == changed.name else asset(folder, name)

    monkeypatch.setattr(shipped, "asset", asset_or_changed)
    read = shipped.read_shipped.__wrapped__
    assert {one.key: one.value for one in read("default.yaml", head=False)}["slurm.time_min"] == 61
