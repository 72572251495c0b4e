"""Messages that the head and the agents cannot process: each is answered, and its sender can go on."""

from __future__ import annotations

import json
import os
import resource
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config import Config
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.control.allocation import Status, StatusReport
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.procs import SpawnFailed, SpawnProcs
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import OpenRun, RunOpened
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.tables.procs import PROCS
from tests.system.support.agent_client import Client, alive


@pytest.fixture
def config() -> Config:
    return load({"fabric.order": ["tcp"]}).config


def order(run: str, mesh: int) -> dict[str, Any]:
    """The document of an order for one proc on the first host."""
    good = SpawnProcs(run, mesh, [0], [0], 1, 1, {}, [], [], "/", 0o022, "own-first", 20.0)
    fields: dict[str, Any] = json.loads(encode(good))
    return fields


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"environment": {"OMP_NUM_THREADS": 1}}, "SpawnProcs.environment.OMP_NUM_THREADS: 1 is not of type <class 'str'>"),
    ({"preload": [3]}, "SpawnProcs.preload: 3 is not of type <class 'str'>"),
    ({"colour": "red"}, "fields ['colour'] are missing or unknown"),
    ({"deadline_s": float("nan")}, "SpawnProcs.deadline_s: nan is not of type <class 'float'>"),
    ({"per_host": 10**9, "num_ranks": 10**9}, "1000000000 procs on each host: 1 to 16384 can be"),
    ({"gpu_visible": "some"}, "gpu_visible is 'some'"),
]


def answer_to(client: Client, mesh: int) -> Refused:
    """Return the refusal of a mesh's order."""
    return client.wait(Refused, lambda message: message.mesh == mesh)


def has_more(messages: list[Message], before: int) -> bool:
    return len(messages) > before


def test_each_is_answered_by_its_number_and_nothing_else_ends(directory: Path) -> None:
    with Client(directory, "feed") as client:
        (pid,) = client.spawn_ready([0])
        for number, (changes, words) in enumerate(WRONG, 100):
            body = json.dumps({**order("feed", number), **changes}).encode()
            client.attachment.channel.send(Frame(Kind.CONTROL, body=body))
            answer = answer_to(client, number)
            assert words in answer.problem and (answer.run, answer.request) == ("feed", "SpawnProcs")
        for body in (b"{", b"[]", b'{"op": "Nothing", "run": "feed"}', b"[" * 100_000):
            before = len(client.messages)
            client.attachment.channel.send(Frame(Kind.CONTROL, body=body))
            wait_until("an answer", partial(has_more, client.messages, before))
            assert isinstance(client.messages[-1], Refused)
        # An error that only the agent can detect.
        unbound = {**order("feed", 200), "bind": "given", "bindings": [{"cpus": "77777"}]}
        client.attachment.channel.send(Frame(Kind.CONTROL, body=json.dumps(unbound).encode()))
        client.wait(SpawnFailed, lambda message: message.mesh == 200)
        client.send(StatusReport([], []))
        assert "does not handle StatusReport" in client.wait(Refused, lambda m: m.request == "StatusReport").problem
        client.send(Ask(0, "nothing", {}, 10.0))
        assert "there is no table 'nothing'" in client.wait(Refused, lambda m: m.request == "Ask").problem

        def ask() -> Rows:
            before = len([message for message in client.messages if isinstance(message, Rows)])
            client.send(Ask(0, "procs", {"pid": pid}, 1.0))
            return client.wait_all(Rows, before + 1)[-1]

        # A test's client answers no question. Again, if this machine had more to do than to answer in that time.
        rows = wait_until("the hosts", ask, accept=lambda rows: rows.missing == ["the program of run feed"])
        (row,) = (row for portion in rows.portions for row in PROCS.read(portion.rows))
        assert (row.pid, row.run, row.state) == (pid, "feed", "ready") and row.rss_bytes > 1 << 20
        assert client.lost is None and alive(pid)
        assert client.spawn_ready([0, 1])


def test_a_request_that_breaks_an_agent_fails_at_once(directory: Path) -> None:
    """The agent is out of descriptors, so the order fails while it is carried out, after all checks."""
    with Client(directory, "feed") as client:
        (pid,) = client.spawn_ready([0])
        agent = client.wait(RunOpened).hosts[0].pid
        limits = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, limits[1]))
        client.attachment.channel.send(Frame(Kind.CONTROL, body=json.dumps({**order("feed", 5)}).encode()))
        wait_until("an answer", lambda: any(isinstance(answer, (Refused, SpawnFailed)) for answer in client.messages))
        (answer,) = (answer for answer in client.messages if isinstance(answer, (Refused, SpawnFailed)))
        assert answer.mesh == 5 and "Too many open files" in str(answer)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, limits)
        assert client.lost is None and alive(pid)
        assert client.spawn_ready([0])


def test_who_opens_thousands_of_runs_and_leaves_disturbs_nobody(directory: Path) -> None:
    """The end of each run scanned all processes of each host: in total longer than a host may be silent."""
    with Client(directory, "bystander") as bystander:
        pids = bystander.spawn_ready([0, 1])
        with Client(directory, "many") as client:
            for number in range(3000):
                client.send(OpenRun(f"run{number}", "x" * 100_000 if number < 200 else "", "here", 1, owner=False))
            wait_until("the runs", lambda: len(client.messages) >= 3000)
            report = query_status(directory, 60.0)
            assert report is not None and len(report["runs"]) == 3002
            assert len(next(str(run["title"]) for run in report["runs"] if run["run"] == "run1")) == 1000
        wait_until("the end of the runs", lambda: len((query_status(directory, 60.0) or {"runs": []})["runs"]) == 1)
        assert bystander.lost is None and all(map(alive, pids))
        assert bystander.spawn_ready([0, 1])


def test_who_asks_and_does_not_read_is_given_up(directory: Path) -> None:
    held, over = threading.Event(), threading.Event()

    class Deaf(Client):
        def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
            super().on_frame(channel, frame)
            if isinstance(self.messages[-1], StatusReport):
                held.set()
                over.wait()

    with Client(directory, "bystander") as bystander:
        pids = bystander.spawn_ready([0, 1])
        deaf = Deaf(directory, "deaf")
        try:
            for number in range(200):
                deaf.send(OpenRun(f"run{number}", "x" * 1000, "here", 1, owner=False))
            (head, _) = (host.pid for host in deaf.opened.hosts)
            before_bytes = memory_bytes(head)
            deaf.send(Status())
            held.wait()
            for _ in range(2000):  # each answer has 200 KB
                deaf.send(Status())
            # While the head works off the requests, a tool may find it busy.
            wait_until("the end of the run", lambda: (runs := runs_of(directory)) is not None and "deaf" not in runs)
            assert memory_bytes(head) - before_bytes < 150 << 20
        finally:
            over.set()
            deaf.close()
        assert bystander.lost is None and all(map(alive, pids))


def runs_of(directory: Path) -> list[object] | None:
    report = query_status(directory, 60.0)
    return None if report is None else [run["run"] for run in report["runs"]]


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
