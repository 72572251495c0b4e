"""An agent that Slurm ends while its head is gone ends at once: Slurm waits for it, and `run` for Slurm's word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple, cast

import pytest

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.head.link import ChannelLink
from monarch_hpc.agent.termination import Termination
from monarch_hpc.config.load import load
from monarch_hpc.transport.api import FrameChannel
from tests.system.support.parties import Party


class Joined(NamedTuple):
    """A head, an agent, and the agent's channel to it."""

    head: Party
    agent: Party
    channel: FrameChannel


@pytest.fixture
def joined() -> Iterator[Joined]:
    with ExitStack() as resources:
        head, agent = Party(), Party()
        resources.callback(head.close)
        resources.callback(agent.close)
        channel = agent.node.connect(head.node.listen(["127.0.0.1"]))
        head.until(lambda: bool(head.opened))
        yield Joined(head, agent, channel)


def terminate(joined: Joined) -> list[str]:
    """Send the agent SIGTERM; the list has an element if it has ended at once."""
    ends: list[str] = []
    handled: list[bool] = []
    args = cast("AgentArgs", None)  # with which only the head's agent asks Slurm
    link, engine = ChannelLink(joined.channel), joined.agent.node.engine

    def end() -> None:
        termination.outlast_head(lambda: ends.append("it ends"))

    termination = Termination(engine, args, load({}).config, "", lambda: link, end)
    engine.call_soon(termination.on_sigterm)
    engine.call_soon(lambda: handled.append(True))
    joined.agent.until(lambda: bool(handled))
    return ends


def test_the_head_ends_an_agent_that_slurm_ends(joined: Joined) -> None:
    assert terminate(joined) == []
    joined.head.until(lambda: bool(joined.head.frames))


def test_an_agent_whose_head_is_gone_ends_by_itself(joined: Joined) -> None:
    joined.head.node.engine.call_soon(lambda: joined.head.opened[0].close("the head ends"))
    joined.agent.until(lambda: joined.channel.error is not None)
    assert terminate(joined) == ["it ends"]
