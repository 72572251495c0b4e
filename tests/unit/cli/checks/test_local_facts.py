"""Findings on folders, quotas, and versions that differ between login node and hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.cli.checks.findings import Finding, Severity
from monarch_hpc.cli.checks.hosts import dial_back, examine_host
from monarch_hpc.cli.checks.local_facts import Folder, LocalFacts, compare_versions, examine_local

GOOD = Folder("/tmp", 8 << 30, None, in_memory=False, runs=True)
FACTS = LocalFacts(
    tmp=GOOD,
    shared=replace(GOOD, path="/scratch/alice"),
    home="rw",
    shared_in_home=False,
    exceeded=(),
    munge=False,
    profile="vista, checked 2026-11-21 against TACC's pages",
    versions={"torch": "2.5.1"},
)
HERE = {"python": "3.11.9, /venv/bin/python", "package": "monarch_hpc 0.1.0, /venv", "torch": "2.5.1"}


def finding(facts: LocalFacts, what: str) -> Finding:
    return next(found for found in examine_local(facts) if found.what == what)


def test_nothing_is_wrong_with_good_folders_and_munge_is_not_missed() -> None:
    found = examine_local(FACTS)
    assert {one.state for one in found} == {Severity.OK}
    assert [one.what for one in found] == ["profile", "tmp", "paths.shared", "quota", "munge", "torch"]


@pytest.mark.parametrize(
    ("folder", "state", "words"),
    [
        (replace(GOOD, runs=False), Severity.WARN, "mounted noexec"),
        (replace(GOOD, free_bytes=1 << 20), Severity.WARN, "1 MiB free"),
        (replace(GOOD, in_memory=True), Severity.OK, "in memory"),
        (replace(GOOD, problem="cannot be written by you"), Severity.PROBLEM, "cannot be written"),
    ],
)
def test_a_folder_for_temporary_files_runs_programs_and_has_room(folder: Folder, state: Severity, words: str) -> None:
    found = finding(replace(FACTS, tmp=folder), "tmp")
    assert (found.state, words in found.found) == (state, True), found


def test_a_shared_folder_that_hosts_cannot_write_or_that_is_full() -> None:
    for home in ("ro", "none"):
        found = finding(replace(FACTS, home=home, shared_in_home=True), "paths.shared")
        assert found.state is Severity.PROBLEM
    assert finding(replace(FACTS, home="none"), "paths.shared").state is Severity.OK
    full = replace(FACTS, shared=replace(GOOD, num_free_files=3))
    assert finding(full, "paths.shared").state is Severity.WARN
    assert finding(replace(FACTS, exceeded=["/home"]), "quota").found == "exceeded on /home"


def test_versions_that_differ_are_named_with_both_interpreters() -> None:
    there = {"python": "3.12.1, /usr/bin/python3", "package": "monarch_hpc 0.1.0, /other", "torch": "2.4.0"}
    found = list(compare_versions(HERE, there, "n1"))
    assert [(one.what, one.state) for one in found] == [
        ("n1: python", Severity.PROBLEM),
        ("n1: torch", Severity.WARN),
    ]
    assert found[0].found == "3.12.1, /usr/bin/python3 there, 3.11.9, /venv/bin/python here"
    (missing,) = compare_versions(HERE, {**HERE, "cloudpickle": "3.1"}, "n1")
    assert missing.found == "3.1 there, not installed here"


def test_a_hosts_own_warnings_its_clock_and_its_way_back() -> None:
    warning = {"what": "tmp", "found": "full", "state": "warn", "advice": "free some"}
    answer: dict[str, object] = {
        "findings": [warning, *({"what": w, "found": f, "state": "ok", "advice": ""} for w, f in HERE.items())],
        "time_s": 90.0,
        "reached": "10.0.0.1:7",
    }
    found = {one.what: one for one in examine_host("n1", answer, HERE, (100.0, 101.0))}
    assert found["n1: tmp"] == Finding("n1: tmp", "full", Severity.WARN, "free some")
    assert found["n1: clock"].found == "differs by 10 s or more"
    assert found["n1: way back"].found == "reaches this machine at 10.0.0.1:7"
    assert len(found) == 3
    answer |= {"time_s": 100.5, "reached": ""}
    late = {one.what: one for one in examine_host("n1", answer, HERE, (100.0, 101.0))}
    assert late["n1: clock"].state is Severity.OK
    assert "relay" in late["n1: way back"].found


def test_an_address_that_is_none_is_not_reached() -> None:
    assert dial_back("") == dial_back("nonsense,127.0.0.1:x") == ""
