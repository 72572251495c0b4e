"""The closed folders of a lab host: they show enough for it to run, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from monarch_hpc.testing.slurmlab.openings import Opening, plan_openings

BASE = Path("/tmp/labs/lab")
# The lab's own folder lies in /tmp, of which each host has its own.
OF_BASE = Opening(BASE, None, True)


def closed_are(*closed: str) -> Callable[[Path], bool]:
    return lambda folder: str(folder) in closed


def resolver(links: dict[str, str]) -> Callable[[Path], Path]:
    def real(path: Path) -> Path:
        for link, target in links.items():
            if path.is_relative_to(link):
                return real(Path(target) / path.relative_to(link))
        return path

    return real


def plan(*needed: str, closed: Sequence[str] = (), links: dict[str, str] | None = None) -> list[Opening]:
    openings = plan_openings([Path(path) for path in needed], BASE, closed_are(*closed), resolver(links or {}))
    assert openings.count(OF_BASE) == 1
    return [opening for opening in openings if opening != OF_BASE]


def test_open_folders_need_no_opening() -> None:
    assert plan("/usr", "/srv/project", "/srv/project/.venv") == []


def test_a_closed_ancestor_is_covered_and_the_folder_shown() -> None:
    assert plan("/root/python/3.11", closed=["/root"]) == [Opening(Path("/root/python/3.11"), Path("/root"), False)]


def test_a_closed_ancestor_is_covered_once() -> None:
    assert plan("/root/b", "/root/a/deep", "/root/b", closed=["/root", "/root/a"]) == [
        Opening(Path("/root/b"), Path("/root"), False),
        Opening(Path("/root/a/deep"), None, False),
    ]


def test_a_folder_inside_a_shown_one_is_shown_with_it() -> None:
    assert plan("/root/project", "/root/project/.venv", closed=["/root"]) == [
        Opening(Path("/root/project"), Path("/root"), False)
    ]


def test_a_closed_folder_inside_a_shown_one_is_opened_too() -> None:
    assert plan("/root/project", "/root/project/private/venv", closed=["/root", "/root/project/private"]) == [
        Opening(Path("/root/project"), Path("/root"), False),
        Opening(Path("/root/project/private/venv"), Path("/root/project/private"), False),
    ]


@pytest.mark.parametrize("own", ["/tmp", "/var/tmp", "/run", "/dev/shm"])
def test_what_a_host_has_for_itself_hides_the_machines(own: str) -> None:
    assert plan(f"{own}/checkout") == [Opening(Path(f"{own}/checkout"), None, False)]


def test_the_lab_inside_a_read_only_folder_stays_writable() -> None:
    project = Path("/tmp/labs")
    assert plan_openings([project], BASE, closed_are(), resolver({})) == (Opening(project, None, False), OF_BASE)


def test_a_link_in_an_open_folder_is_followed() -> None:
    assert plan("/home/me/venv", closed=["/data/me"], links={"/home": "/data"}) == [
        Opening(Path("/data/me/venv"), Path("/data/me"), False)
    ]


def test_a_link_in_a_closed_folder_is_shown_under_both_names() -> None:
    links = {"/root/python": "/root/versions/3.11"}
    assert plan("/root/python", closed=["/root"], links=links) == [
        Opening(Path("/root/python"), Path("/root"), False),
        Opening(Path("/root/versions/3.11"), None, False),
    ]
