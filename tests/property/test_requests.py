"""Any message to the head is carried out or refused: no other request fails, and no channel ends."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.control.allocation import ShutDownDone, Status, StatusReport
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.output import LogsSet, Output, SetLogs
from monarch_hpc.wire.control.procs import (
    ProcEnded,
    ProcLife,
    ProcReady,
    ProcsStopped,
    SpawnFailed,
    SpawnProcs,
    StopProcs,
)
from monarch_hpc.wire.control.programs import ProgramOutput, ReadOutput, StartProgram
from monarch_hpc.wire.control.questions import Ask, AskHosts, Rows
from monarch_hpc.wire.control.refusal import Refused, refuse
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, Recording, RunClosed, RunLinks
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.agent.head.test_head import Party, World, spawn

_NUM_EXAMPLES = 20
"""Examples per kind of message: few, because there are thirty tests, and kinds differ more than examples."""

ASKED = [OpenRun, SpawnProcs, StopProcs, SetLogs, CloseRun, RunLinks, Recording, Ask, AskHosts, Rows, Status]
TOLD = [ProcReady, ProcLife, SpawnFailed, ProcEnded, ProcsStopped, Output, LogsSet, RunClosed, ShutDownDone, Refused]
OF_PROGRAMS = [StartProgram, ReadOutput, ProgramOutput]

numbers = st.integers(-2, 4) | st.integers() | st.sampled_from([1 << 31, 1 << 32, 1 << 63, 1 << 64])
names = st.sampled_from(["run", "", "../x", "a\0b", "\ud800", "out", "none", "procs", "SpawnProcs"]) | st.text(
    max_size=5
)
floats = st.floats() | st.sampled_from([0.0, -1.0, 1e300])
plain = st.recursive(
    st.none() | st.booleans() | numbers | floats | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


def fields_of(kind: type[Message], filler: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Strategy for fields of the right types with any values; *filler* gives the values of other types."""
    hints = typing.get_type_hints(kind)
    return st.fixed_dictionaries({name: _of(hint, filler) for name, hint in hints.items()})


def _of(hint: Any, filler: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return st.lists(_of(arguments[0], filler), max_size=3)
    if origin is dict:
        return st.dictionaries(names, _of(arguments[1], filler), max_size=3)
    if dataclasses.is_dataclass(hint):
        return fields_of(hint, filler)  # type: ignore[arg-type]  # a dataclass of a message
    return {int: numbers, float: floats, str: names, bool: st.booleans()}.get(hint, filler)


def body_of(kind: type[Message], fields: dict[str, Any]) -> bytes:
    return json.dumps({"op": kind.__name__, **fields}).encode()


def world_with_a_run() -> tuple[World, Party]:
    world = World(2)
    world.join(0, 1)
    program = world.open("run")
    world.head.on_client(program, spawn("run", 1, [0, 1]))
    world.head.on_agent(world.agents[0], ProcReady(ProcKey("run", 1, 0, 0), 5, "7", []))
    world.take_all()
    program.take()
    return world, program


def procs_of(world: World) -> dict[str, object]:
    tool = Party()
    world.head.on_client(tool, Status())
    (report,) = tool.take()
    assert isinstance(report, StatusReport)
    return {str(run["run"]): run["procs"] for run in report.runs}


@pytest.mark.parametrize("kind", [*ASKED, *TOLD, *OF_PROGRAMS], ids=lambda kind: kind.__name__)
@settings(max_examples=_NUM_EXAMPLES)
@given(data=st.data())
def test_a_message_with_wrong_fields_is_read_or_refused(kind: type[Message], data: st.DataObject) -> None:
    fields = data.draw(fields_of(kind, plain))
    changed = data.draw(st.dictionaries(st.sampled_from([*fields, "other"]), plain, max_size=2))
    body = body_of(kind, {**fields, **changed})
    try:
        message = decode(body)
    except FrameError as error:
        answer = refuse(body, str(error))
        assert answer.request == kind.__name__ and len(answer.problem) < 1000
        assert decode(encode(answer)) == answer
    else:
        assert decode(encode(message)) == message
        assert refuse(message, "no").request == kind.__name__


@pytest.mark.parametrize("kind", ASKED, ids=lambda kind: kind.__name__)
@settings(max_examples=_NUM_EXAMPLES)
@given(data=st.data())
def test_the_head_answers_what_it_cannot_use_and_ends_nothing_else(kind: type[Message], data: st.DataObject) -> None:
    world, program = world_with_a_run()
    stranger = data.draw(st.booleans())
    asker = Party() if stranger else program
    try:
        message = decode(body_of(kind, data.draw(fields_of(kind, plain))))
    except FrameError:
        return  # answered before it reaches the head
    world.head.on_client(asker, message)
    world.clock.advance(0.0)
    ends_it = isinstance(message, CloseRun) and message.run == "run"
    taken = isinstance(message, OpenRun) and message.run == "run" and message.owner and stranger
    assert program.closed == ("another program has taken over run run" if taken else "")
    assert not asker.closed or taken
    if not ends_it:
        assert procs_of(world)["run"] == 1
    if kind is SpawnProcs and not stranger:
        answered = [type(answer) for answer in program.take()]
        assert answered in ([], [Refused]) or set(answered) == {SpawnFailed}


@pytest.mark.parametrize("kind", TOLD, ids=lambda kind: kind.__name__)
@settings(max_examples=_NUM_EXAMPLES)
@given(data=st.data())
def test_what_an_agent_says_ends_no_channel(kind: type[Message], data: st.DataObject) -> None:
    world, program = world_with_a_run()
    try:
        message = decode(body_of(kind, data.draw(fields_of(kind, plain))))
    except FrameError:
        return
    world.head.on_agent(world.agents[1], message)
    assert not program.closed and "run" in procs_of(world)


def test_a_number_that_is_none_and_one_that_is_too_large_are_refused() -> None:
    good = json.loads(encode(spawn("run", 1, [0])))
    for name, value in [("deadline_s", float("nan")), ("deadline_s", float("inf")), ("deadline_s", 10**400)]:
        with pytest.raises(FrameError, match="deadline_s"):
            decode(json.dumps({**good, name: value}).encode())
    with pytest.raises(FrameError, match=r"SpawnProcs.mesh: a number of 65 bits, more than 64"):
        decode(json.dumps({**good, "mesh": 1 << 64}).encode())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mesh": -1}, "mesh -1 of 1 procs is out of range"),
        ({"per_host": 0}, "0 procs on each host"),
        ({"per_host": 10**9, "num_ranks": 10**9}, "1000000000 procs on each host"),
        ({"hosts": []}, "each host needs one first rank"),
        ({"hosts": [0, 0], "first_rank": [0, 1]}, "each host needs one first rank"),
        ({"first_rank": [-1]}, "do not fit"),
        ({"first_rank": [1]}, "do not fit"),
        ({"deadline_s": 0.0}, "cannot be ready within 0 s"),
        ({"umask": -1}, "umask -1"),
        ({"gpu_visible": "some"}, "gpu_visible is 'some'"),
        ({"bind": "tight"}, "bind is 'tight'"),
        ({"environment": {"A=": "1"}}, "no variable is called 'A='"),
        ({"environment": {"A": "\0"}}, "can be '\\x00'"),
        ({"unset": [""]}, "no variable is called ''"),
        ({"cwd": "/\0"}, "can be '/\\x00'"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_in_one_answer(changes: dict[str, Any], words: str) -> None:
    world, program = world_with_a_run()
    order = dataclasses.replace(spawn("run", 9, [0]), **changes)
    world.head.on_client(program, order)
    (answer,) = program.take()
    assert isinstance(answer, Refused) and words in answer.problem
    assert (answer.request, answer.run, answer.mesh) == ("SpawnProcs", "run", max(order.mesh, 0))
    assert world.take_all() == [[], []] and procs_of(world) == {"run": 1}


def test_links_that_status_could_not_show_are_refused() -> None:
    world, program = world_with_a_run()
    for links in ([{"host": 1}], [{"host": "1", "fabric": "tcp", "why": "", "procs": 1}]):
        world.head.on_client(program, RunLinks("run", typing.cast(list[dict[str, object]], links)))
        (answer,) = program.take()
        assert isinstance(answer, Refused) and answer.problem.startswith(
            "a link has the fields host, fabric, why, procs"
        )


def test_what_an_agent_refuses_reaches_who_asked() -> None:
    world, program = world_with_a_run()
    refused = Refused("run", "local1 failed on it: KeyError: 'x'", "SpawnProcs", 1)
    world.head.on_agent(world.agents[1], refused)
    assert program.take() == [refused]
    tool = Party()
    world.head.on_client(tool, Ask(0, "procs", {}, 5.0))
    (question,), () = (agent.take() for agent in world.agents)
    assert isinstance(question, AskHosts)
    world.head.on_agent(world.agents[0], Refused("", "failed", "AskHosts", 0, question.ticket))
    world.head.on_client(program, Rows(question.ticket, [], [], []))
    (answer,) = tool.take()
    assert isinstance(answer, Rows) and answer.missing == ["host n0", "host n1"]
