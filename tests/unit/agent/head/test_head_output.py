"""The head's handling of output, and of programs' settings for it."""

from __future__ import annotations

from monarch_hpc.wire.control.output import FlushLogs, LogsSet, Output, SetLogs
from monarch_hpc.wire.control.procs import ProcEnded
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.agent.head.test_head import World, spawn, world

__all__ = ["world"]


def test_a_choice_about_output_goes_to_the_hosts_of_the_mesh_and_its_answers_back(world: World) -> None:
    client, other = world.open("1"), world.open("1", owner=False)
    world.head.on_client(client, spawn("1", 1, [0, 1]))
    world.take_all()
    client.take()
    choice = SetLogs("1", 1, [0, 1, 7], [3], False, 5)
    world.head.on_client(client, choice)
    # An unknown host has nothing to change, so the head answers for it.
    assert client.take() == [LogsSet("1", 1, 7, 5)]
    assert world.take_all() == [[choice]] * 2
    world.head.on_agent(world.agents[1], LogsSet("1", 1, 1, 5))
    assert client.take() == [LogsSet("1", 1, 1, 5)]
    # Requests for meshes of others, or for ended ones, are not forwarded, and the head answers them.
    other.take()
    world.head.on_client(other, SetLogs("1", 1, [0], [], False, 6))
    world.head.on_client(client, SetLogs("1", 9, [0], [], False, 7))
    assert other.take() == [LogsSet("1", 1, 0, 6)] and client.take() == [LogsSet("1", 9, 0, 7)]
    assert world.take_all() == [[], []]


def test_a_request_to_flush_goes_the_same_way(world: World) -> None:
    client, other = world.open("1"), world.open("1", owner=False)
    world.head.on_client(client, spawn("1", 1, [0, 1]))
    world.take_all()
    client.take()
    flush = FlushLogs("1", 1, [0, 1, 7], 5)
    world.head.on_client(client, flush)
    assert client.take() == [LogsSet("1", 1, 7, 5)] and world.take_all() == [[flush]] * 2
    other.take()
    world.head.on_client(other, FlushLogs("1", 1, [0], 6))
    assert other.take() == [LogsSet("1", 1, 0, 6)] and world.take_all() == [[], []]


def test_much_output_is_left_out_and_little_passes(world: World) -> None:
    client = world.open("1")
    world.head.on_client(client, spawn("1", 1, [0, 1]))
    client.take()
    much = Output(ProcKey("1", 1, 0, 0), "out", ["x" * 1000] * 1000, 0)
    for _ in range(100):
        world.head.on_agent(world.agents[0], much)
    passed = len(client.take())
    assert 0 < passed < 30
    world.head.on_agent(world.agents[1], Output(ProcKey("1", 1, 1, 1), "out", ["a line"], 2))
    assert client.take() == [Output(ProcKey("1", 1, 1, 1), "out", ["a line"], 2)]
    # Before a proc's end, the head reports its lines dropped so far.
    ended = ProcEnded(ProcKey("1", 1, 0, 0), False, "exit code 1", [])
    world.head.on_agent(world.agents[0], ended)
    assert client.take() == [Output(ProcKey("1", 1, 0, 0), "out", [], (100 - passed) * 1000), ended]
