"""The roster: one agent a host, and the reason for each host that cannot be used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.agent.head.hosts.roster import HostRoster
from monarch_hpc.wire.control.allocation import HostEntry
from tests.unit.agent.head.test_head import entry


class Hosts:
    """A roster of three hosts, whose agents are peers 10, 11 and 12."""

    def __init__(self) -> None:
        self.roster = HostRoster(3)

    def join(self, rank: int, problem: str = "") -> str:
        refusal = self.roster.refusal(entry(rank))
        if not refusal:
            self.roster.add(10 + rank, entry(rank), problem)
        return refusal


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


def test_hosts_are_listed_by_rank_in_whatever_order_they_join(hosts: Hosts) -> None:
    assert [hosts.join(rank) for rank in (2, 0, 1)] == ["", "", ""]
    assert [slot.entry.rank for slot in hosts.roster.all()] == [0, 1, 2]
    assert [host.rank for host in hosts.roster.hosts()] == [0, 1, 2]
    assert (hosts.roster.linked(), hosts.roster.missing()) == ({0, 1, 2}, {})
    assert hosts.roster.name(1) == "n1"


def test_a_second_agent_of_a_host_and_an_unknown_host_are_refused(hosts: Hosts) -> None:
    hosts.join(0)
    assert hosts.join(0) == "host 0 has an agent already: process 100 on n0"
    assert [hosts.join(rank) for rank in (3, -1)] == [
        "there is no host 3 among 3",
        "there is no host -1 among 3",
    ]
    assert hosts.roster.of(0) is None
    assert hosts.roster.linked() == {0}


def test_hosts_without_a_working_agent_are_missing_with_the_reason(hosts: Hosts) -> None:
    hosts.join(0, "no space left in /dev/shm")
    hosts.join(1)
    assert hosts.roster.missing() == {0: "no space left in /dev/shm", 2: "its agent did not report"}
    assert [hosts.roster.usable(rank) for rank in range(4)] == [False, True, False, False]
    assert [host.rank for host in hosts.roster.hosts()] == [1]


def test_a_lost_host_is_not_usable_and_keeps_its_name(hosts: Hosts) -> None:
    hosts.join(0), hosts.join(1)
    hosts.roster.lose(1, "no heartbeat for 6.0 s")
    assert (hosts.roster.usable(1), hosts.roster.linked(), hosts.roster.name(1)) == (False, {0}, "n1")
    assert hosts.roster.absence(1) == "the host is lost: no heartbeat for 6.0 s"
    assert hosts.roster.of(11) is None


def test_a_lost_host_may_join_again(hosts: Hosts) -> None:
    hosts.join(0)
    hosts.roster.lose(0, "its agent was replaced")
    assert hosts.join(0) == ""
    assert hosts.roster.usable(0) and len(hosts.roster.all()) == 1


def test_messages_go_to_connected_agents_only(hosts: Hosts) -> None:
    hosts.join(0, "a problem"), hosts.join(1)
    hosts.roster.lose(1, "gone")
    assert hosts.roster.peers([0, 1, 2, 7]) == [10]


def added(rank: int, first_rank: int) -> HostEntry:
    return replace(entry(rank), job_id=8, first_rank=first_rank)


def test_the_hosts_of_a_further_job_follow_those_of_the_jobs_before(hosts: Hosts) -> None:
    roster = hosts.roster
    for rank in range(3):
        hosts.join(rank)
    assert roster.refusal(added(5, 5), 7) == ""
    roster.grow(5, 7)  # the job of ranks 3 and 4 waits in the queue
    roster.add(15, added(5, 5), "")
    assert (roster.num_hosts, roster.missing()) == (7, {6: "its agent did not report"})
    assert [roster.absence(rank) for rank in (3, 6)] == [
        "the host is of a Slurm job that has not begun",
        "its agent did not report",
    ]
    assert roster.refusal(added(4, 3), 5) == ""
    roster.grow(3, 5)
    assert sorted(roster.missing()) == [3, 4, 6]
    assert [host.rank for host in roster.hosts()] == [0, 1, 2, 5]


@pytest.mark.parametrize(("first_rank", "num_hosts"), [(0, 7), (6, 7), (5, 5)], ids=["no job", "below it", "above it"])
def test_a_host_outside_of_its_job_is_refused(hosts: Hosts, first_rank: int, num_hosts: int) -> None:
    assert hosts.roster.refusal(added(5, first_rank), num_hosts) == "there is no host 5 among 3"
