"""A channel that moves to another fabric amid traffic: calls of many threads both ways, limited by a small window.

``MOVING_ROUNDS`` repeats each test that many times, with new races each time.
"""

from __future__ import annotations

import os
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.connect import introduction
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.wire.frames import Buffer, Frame, Kind
from tests.system.support import parties as parties_module
from tests.system.support.parties import LIMITS, PATIENCE_S, RDMA, UCX, Party, parties

__all__ = ["parties"]

_ROUNDS = int(os.environ.get("MOVING_ROUNDS", "1"))
_NUM_SENDERS = 3
_NUM_ACTORS = 2
_NUM_CALLS = 80
_SIZES = [0, 0, 0, 0, 5_000, 30_000, 70_000, 250_000]
"""Sizes of one record, of several in a message, of large messages, and of more than the window."""


class Side:
    """One of two processes: threads that call, and threads that handle calls."""

    def __init__(self, party: Party, seed: int) -> None:
        self.party = party
        self.answers: list[int] = []
        self.misplaced: list[tuple[int, int, int]] = []
        self._seed = seed
        self._mail = [queue.SimpleQueue[tuple[FrameChannel, Frame] | None]() for _ in range(_NUM_ACTORS)]
        self._threads: list[threading.Thread] = []
        party.on_frame_hook = self._take

    def _take(self, channel: FrameChannel, frame: Frame) -> None:
        self.party.frames.clear()
        if frame.kind is Kind.CALL:
            self._mail[frame.dest].put((channel, frame))
        else:
            self.answers.append(frame.dest)

    def start(self, channel: FrameChannel) -> None:
        """Start calling and handling."""
        for actor in range(_NUM_ACTORS):
            self._run(self._handle, actor)
        for sender in range(_NUM_SENDERS):
            self._run(self._call, channel, sender)

    def _run(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _call(self, channel: FrameChannel, sender: int) -> None:
        dice = random.Random(self._seed * _NUM_SENDERS + sender)
        for number in range(_NUM_CALLS):
            size = dice.choice(_SIZES)
            buffers: tuple[Buffer, ...] = (bytes(size),) if size else ()
            channel.send(Frame(Kind.CALL, dice.randrange(_NUM_ACTORS), sender << 32 | number, b"", buffers))

    def _handle(self, actor: int) -> None:
        last = [-1] * _NUM_SENDERS
        while (mail := self._mail[actor].get()) is not None:
            channel, frame = mail
            sender, number = frame.reply >> 32, frame.reply & 0xFFFFFFFF
            if number <= last[sender]:
                self.misplaced.append((actor, sender, number))
            last[sender] = number
            channel.send(Frame(Kind.RESULT, frame.reply))
            channel.consumed(frame.dest, cost_of(frame))

    def settle(self) -> None:
        """Wait for all answers."""
        due = sorted(sender << 32 | number for sender in range(_NUM_SENDERS) for number in range(_NUM_CALLS))
        self.party.until(lambda: len(self.answers) == len(due))
        assert sorted(self.answers) == due

    def stop(self) -> None:
        """Stop handling."""
        for mail in self._mail:
            mail.put(None)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert not self.misplaced


@pytest.mark.parametrize("round_", range(_ROUNDS))
@pytest.mark.parametrize("fabric", ["ucx-shm", "ucx-tcp", *RDMA])
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.04])
def test_nothing_is_lost_or_overtaken(
    parties: Callable[..., Party], monkeypatch: pytest.MonkeyPatch, fabric: str, after_s: float, round_: int
) -> None:
    monkeypatch.setattr(parties_module, "LIMITS", replace(LIMITS, mailbox_bytes=2**18, send_queue_bytes=2**18))
    monkeypatch.setattr(introduction, "FIRST_S", after_s)
    sides = [Side(parties(ucx=UCX[fabric]), seed) for seed in (2 * round_, 2 * round_ + 1)]
    near, far = (side.party for side in sides)
    channel = near.node.connect(far.node.listen(["127.0.0.1"]), far.identity.incarnation)
    far.until(lambda: bool(far.opened))
    for side, line in zip(sides, (channel, far.opened[0]), strict=True):
        side.start(line)
    for side in sides:
        side.settle()
    for side in sides:
        side.stop()
    near.until(lambda: bool(channel.why))
    assert channel.fabric == fabric.replace("-", "/"), channel.why
