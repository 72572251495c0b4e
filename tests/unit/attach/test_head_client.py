"""A channel for one question after the other: what ends between two of them costs no answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_hpc.attach.head import client as module
from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.core.errors import ChannelClosed, PeerLost
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.frames import Frame, Kind


class Heads:
    """The heads of an allocation, each of which answers with its number until it is lost."""

    def __init__(self) -> None:
        self.num_attached = 0
        self.closed: list[int] = []
        self.channel: Any = None

    def attach(self, _directory: Path, _role: object, listener: HeadClient, *_rest: object) -> Any:
        self.num_attached += 1
        number = self.num_attached
        channel = self.channel = SimpleNamespace(fabric="tcp", why="", open=True)

        def send(message: Message) -> None:
            assert isinstance(message, Ask)
            if not channel.open:
                raise ChannelClosed("head", "it is gone")
            rows = Rows(number, [], [], [])
            listener.on_frame(channel, Frame(Kind.CONTROL, body=encode(rows)))

        node = SimpleNamespace(close=lambda _reason: self.closed.append(number))
        return SimpleNamespace(channel=channel, send=send, node=node)


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Heads:
    heads = Heads()
    monkeypatch.setattr(module, "attach", heads.attach)
    return heads


@pytest.fixture
def client(heads: Heads) -> Iterator[HeadClient]:
    with contextlib.closing(HeadClient(Path("dev"))) as client:
        yield client


def ask(client: HeadClient) -> int:
    answer = client.ask(Ask(0, "calls", {}, 1.0), Rows, 5.0)
    return answer.ticket if isinstance(answer, Rows) else 0


def test_a_head_that_is_lost_between_questions_is_looked_for_again(client: HeadClient, heads: Heads) -> None:
    assert [ask(client), ask(client)] == [1, 1]
    first = heads.channel
    first.open = False
    client.on_lost(first, PeerLost("head", "it was killed"))
    assert [ask(client), ask(client)] == [2, 2] and heads.closed == [1]
    client.on_lost(first, PeerLost("head", "told late"))  # not of this head
    assert ask(client) == 2 and heads.num_attached == 2


def test_a_channel_that_broke_without_a_word_costs_one_answer(client: HeadClient, heads: Heads) -> None:
    assert ask(client) == 1
    heads.channel.open = False
    assert [ask(client), ask(client)] == [0, 2]
