"""A command's channel to the head of an allocation, for one question after the other."""

from __future__ import annotations

import contextlib
from pathlib import Path

from monarch_hpc.attach.attach import Attachment, attach
from monarch_hpc.core.errors import AllocationError, ConfigError, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.control.message import Message, make, parse
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.frames import Frame

__all__ = ["Asker", "HeadClient", "ask"]

_CONNECT_S = 15.0
"""Longest wait for the connection, however long answers may take."""

_log = Logger(__name__)


class Asker:
    """A listener that waits for one answer.

    Args:
        wanted: what is an answer: no other message is looked at, but a refusal.

    Attributes:
        answer: the answer; None if there is none, or the head has refused.
        lost: why the head is gone; empty if it has answered.
        over: set once there is no more to wait for.
    """

    def __init__(self, engine: Engine, *wanted: type[Message]) -> None:
        self._wanted = {cls.__name__: cls for cls in wanted}
        self.answer: Message | None = None
        self.lost = ""
        self.over = Flag(engine)

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: tools do not listen."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Store the answer."""
        name, fields = parse(frame.body)
        if name in self._wanted:
            self.answer = make(self._wanted[name], fields)
            self.over.set()
        elif name == Refused.__name__:
            refused = make(Refused, fields)
            _log.warning("the head refused %s: %s", refused.request, refused.problem)
            self.over.set()

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Stop waiting: no answer will come."""
        self.lost = str(error)
        self.over.set()


class HeadClient:
    """A tool's channel to the head of an allocation, for one question after the other; the first one opens it.

    Args:
        directory: the allocation's.

    Attributes:
        fabric, why: the fabric of the channel, and the reason for it; empty while there is none.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fabric = self.why = ""
        self._engine: Engine | None = None
        self._attachment: Attachment | None = None
        self._asker: Asker | None = None
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether the channel was opened and has ended: the next question opens another one."""
        return self._is_lost

    def ask(self, question: Message, wanted: type[Message], timeout_s: float) -> Message | None:
        """Ask the head; None if it refuses the question, or cannot be reached in time."""
        was_open = self._attachment is not None and not self._is_lost
        answer, lost = self._ask(question, wanted, timeout_s)
        if lost and was_open:  # the channel may have ended before: another head may have taken its place
            answer, _ = self._ask(question, wanted, timeout_s)
        return answer

    def _ask(self, question: Message, wanted: type[Message], timeout_s: float) -> tuple[Message | None, str]:
        if self._engine is None:
            self._engine = Engine()
            self._engine.start()
        if self._is_lost:  # since the last answer: another head may have taken its place
            self._leave()
        asker = self._asker = Asker(self._engine, wanted)
        try:
            if self._attachment is None:
                self._attachment = attach(self.directory, Role.TOOL, self, self._engine, min(timeout_s, _CONNECT_S))
                self.fabric, self.why = self._attachment.channel.fabric, self._attachment.channel.why
            self._attachment.send(question)
            is_over = asker.over.wait(timeout_s)
        except (AllocationError, ConfigError, TransportError, OSError):
            is_over = False
        if not is_over or asker.lost:
            self._leave()  # an answer that comes late must not be taken for the next one
        return asker.answer, asker.lost

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: tools do not listen."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Pass an answer on to the question."""
        if self._asker is not None:
            self._asker.on_frame(channel, frame)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """End the question: no answer will come. The end of an earlier channel is none of its concern."""
        if self._attachment is not None:
            if self._attachment.channel is not channel:
                return
            self._is_lost = True
        if self._asker is not None:
            self._asker.on_lost(channel, error)

    def _leave(self) -> None:
        self._is_lost = False
        if self._attachment is not None:
            self._attachment.node.close("the questions are answered")
            self._attachment = None

    def close(self) -> None:
        """Close the channel."""
        self._leave()
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def ask(
    head: Path | HeadClient, question: Message, wanted: type[Message], timeout_s: float
) -> tuple[Message | None, str, str]:
    """Ask a head, that of an allocation's directory or one to which there is a channel.

    Returns:
        The answer, None if the head refuses the question or cannot be reached in time; the fabric of the channel, and
        the reason for that fabric.
    """
    if isinstance(head, HeadClient):
        return head.ask(question, wanted, timeout_s), head.fabric, head.why
    with contextlib.closing(HeadClient(head)) as client:
        return client.ask(question, wanted, timeout_s), client.fabric, client.why
