"""The lab is like the sites: several login hosts, homes of every kind, checks with their own words."""

from __future__ import annotations

from typing import Literal

from monarch_hpc.testing.slurmlab import SlurmLab
from tests.slurm.test_lab import HOSTS, lines_of


def test_a_check_of_the_site_refuses_in_its_own_words(lab: SlurmLab) -> None:
    refused = lab.run(["sbatch", "-p", "checked", "--wrap", "true"])
    assert refused.returncode == 1
    assert "Job refused by the site's check: an account is needed in partition checked (-A)" in refused.stderr
    assert lab.run(["sbatch", "-p", "checked", "-A", "any", "--wrap", "true"]).returncode == 0


def test_two_login_hosts_share_homes_and_nothing_else(lab: SlurmLab) -> None:
    assert lab.logins == ("login", "login2")
    lab.run(["sh", "-c", "touch /tmp/mine here; exec sleep 1"], check=True)
    seen = lab.run(["sh", "-c", "hostname; hostname -I; ls /tmp/mine here"], host="login2").stdout
    assert seen.split() == ["login2", "10.177.0.2", "here"]
    given = lines_of(lab, "srun", "-N2", "hostname", host="login2")
    assert len(set(given)) == 2 and set(given) <= set(HOSTS)
    lab.kill_host("login2")
    assert not lab.is_up("login2") and lab.node_states() == dict.fromkeys(HOSTS, "idle")
    lab.boot_host("login2")
    assert lines_of(lab, "squeue", "-h", host="login2") == []


def test_homes_are_as_the_site_shows_them_to_hosts(lab: SlurmLab) -> None:
    home, scratch = lab.home() / "file", lab.scratch() / "file"
    write = ["sh", "-c", f"touch {home} && echo home; touch {scratch} && echo scratch"]
    kinds: dict[Literal["ro", "none", "rw"], list[str]]
    kinds = {"ro": ["scratch"], "none": ["scratch"], "rw": ["home", "scratch"]}
    for access, written in kinds.items():
        lab.set_home(access)
        assert lines_of(lab, "srun", "-N1", *write) == written
        assert lines_of(lab, *write) == ["home", "scratch"]  # on the login host
