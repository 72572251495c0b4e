"""Frames whose buffers are mapped by the receiver."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path

import pytest

from monarch_hpc.core.errors import ChannelClosed, FrameError
from monarch_hpc.core.storage.segment import fix
from monarch_hpc.transport.sharing import SharedFrames, ShareStep, copy_to_share, is_shareable
from monarch_hpc.wire.frames import Buffer, Container, Frame, FrameHead, Kind, RefusedBuffers, container_of

LARGE = 3 * 4096 + 5
_CONTAINERS = (Container.MEMORY, Container.BYTEARRAY, Container.MEMORY)


class Pair:
    """Two ends that hand each other their frames; the second may be an agent's."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.got: list[Frame] = []
        self.first = SharedFrames(lambda frame: self.give(self.second, frame), keeps=False)
        self.second = SharedFrames(lambda frame: self.give(self.first, frame), keeps=keeps)

    def give(self, end: SharedFrames, frame: Frame) -> None:
        whole = end.on_frame(frame)
        if whole is not None:
            self.got.append(whole)

    def send(self, frame: Frame) -> Frame:
        wrapped = self.first.wrap(frame)
        if wrapped is frame:
            return frame
        self.give(self.second, wrapped)
        return self.got.pop()


def agreed(*, keeps: bool = False) -> Pair:
    pair = Pair(keeps=keeps)
    answers: list[bool] = []
    pair.first.ask(lambda: answers.append(pair.first.agreed))
    assert answers == [True]
    return pair


def large() -> Frame:
    first, last = memoryview(bytearray(os.urandom(LARGE)))[:-1], memoryview(bytearray(b"123456"))[:5]
    buffers: list[Buffer] = [first, memoryview(b""), bytearray(b"short"), b"bytes", last]
    return Frame(Kind.CAST, 7, 8, b"body", copy_to_share(buffers))


def num_files() -> int:
    num = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder itself
            num += "memfd:monarch-hpc-" in os.readlink(file)
    return num


def test_a_frame_arrives_in_memory_of_its_receiver() -> None:
    frame = large()
    got = agreed().send(frame)
    assert (got.kind, got.dest, got.reply, got.body) == (Kind.CAST, 7, 8, b"body") and got is not frame
    assert [bytes(buffer) for buffer in got.buffers] == [bytes(buffer) for buffer in frame.buffers]
    assert got.buffers[2] is frame.buffers[2] and got.buffers[3] is frame.buffers[3]
    view = memoryview(got.buffers[0])
    view[0] ^= 255
    assert view[0] != memoryview(frame.buffers[0])[0] and not view.readonly


def test_an_agent_hands_on_what_it_got() -> None:
    frame = large()
    kept = agreed(keeps=True).send(frame)
    assert [memoryview(buffer).readonly for buffer in kept.buffers] == [True, True, False, True, True]
    contents = [bytes(buffer) for buffer in frame.buffers]
    del frame
    gc.collect()
    assert [bytes(buffer) for buffer in agreed().send(kept).buffers] == contents


def test_what_landed_at_an_agent_is_handed_on() -> None:
    agent = SharedFrames(lambda _frame: None, keeps=True)
    head = FrameHead(Kind.CAST, 7, 8, 4, (LARGE, 3, 6), _CONTAINERS, 48)
    views = agent.land(head, LARGE)
    assert views is not None and [view.nbytes for view in views] == [LARGE, 3, 6]
    views[2][:], views[1][:] = b"abcdef", b"xyz"
    for view in views:
        fix(view)
    got = agreed().send(Frame(Kind.CAST, 7, 8, b"body", views))
    assert bytes(got.buffers[2]) == b"abcdef" and not memoryview(got.buffers[2]).readonly
    assert bytes(got.buffers[1]) == b"xyz" and container_of(views[1]) is Container.BYTEARRAY
    assert agent.land(head, LARGE + 7) is None
    assert agent.land(FrameHead(Kind.CAST, 7, 8, 4, (LARGE,), (Container.BYTES,), 32), 1) is None
    assert SharedFrames(lambda _frame: None, keeps=False).land(head, 1) is None


def test_frames_go_as_they_are_without_an_answer_or_for_other_memory() -> None:
    frame = large()
    assert Pair().send(frame) is frame
    other = Frame(Kind.CAST, 7, 8, b"", [bytearray(LARGE)])
    assert agreed().send(other) is other


def test_memory_is_kept_until_it_was_opened() -> None:
    before = num_files()
    pair = agreed()
    wrapped = pair.first.wrap(large())
    gc.collect()
    assert num_files() == before + 1
    pair.give(pair.second, wrapped)
    del wrapped
    gc.collect()
    assert num_files() == before
    pair.first.wrap(large())
    pair.first.close()
    gc.collect()
    assert num_files() == before


def test_memory_of_a_frame_that_cannot_be_sent_is_let_go() -> None:
    before = num_files()
    pair = agreed()
    first, second = pair.first.wrap(large()), pair.first.wrap(large())
    pair.first.withdraw(Frame(Kind.CALL, first.dest, second.reply))  # not a frame of shared memory
    pair.first.withdraw(first)
    del first
    gc.collect()
    assert num_files() == before + 1
    pair.give(pair.second, second)
    assert not isinstance(pair.got.pop().buffers, RefusedBuffers)


def test_memory_that_is_gone_refuses_the_frame() -> None:
    pair = agreed()
    wrapped = pair.first.wrap(large())
    pair.first.close()
    gc.collect()
    pair.give(pair.second, wrapped)
    (got,) = pair.got
    assert isinstance(got.buffers, RefusedBuffers) and "cannot be opened" in got.buffers.why


def test_an_end_of_the_channel_answers_the_question() -> None:
    answers: list[bool] = []
    silent = SharedFrames(lambda _frame: None, keeps=False)
    silent.ask(lambda: answers.append(silent.agreed))
    assert not answers
    silent.close()

    def fail(_frame: Frame) -> None:
        raise ChannelClosed("peer", "over")

    broken = SharedFrames(fail, keeps=False)
    broken.ask(lambda: answers.append(broken.agreed))
    assert answers == [False, False] and broken.asked


@pytest.mark.parametrize("body", [b"", b"abc", bytes(48)])
def test_a_place_that_cannot_be_opened_is_refused(body: bytes) -> None:
    sent: list[Frame] = []
    SharedFrames(sent.append, keeps=False).on_frame(Frame(Kind.SHARED, ShareStep.PROBE, 5, body))
    assert [(frame.dest, frame.reply) for frame in sent] == [(ShareStep.REFUSED, 5)]


def test_malformed_frames_are_refused() -> None:
    pair = agreed()
    wrapped = pair.first.wrap(large())
    body = bytes(wrapped.body)
    for bad in (b"", body[:30], body[:-1], body + b"x", body[:24] + bytes(8) + body[32:]):
        with pytest.raises(FrameError):
            pair.second.on_frame(Frame(Kind.SHARED, ShareStep.FRAME, 1, bad, wrapped.buffers))
    for others in ((), wrapped.buffers[:1], [*wrapped.buffers, b"more"]):
        with pytest.raises(FrameError, match="other lengths"):
            pair.second.on_frame(Frame(Kind.SHARED, ShareStep.FRAME, 1, body, others))
    with pytest.raises(FrameError, match="step 9"):
        pair.second.on_frame(Frame(Kind.SHARED, 9, 1))


def test_only_large_arrays_are_worth_it() -> None:
    view = memoryview(bytearray(LARGE))[1:]
    assert is_shareable([view], LARGE - 1) and not is_shareable([view], LARGE)
    assert is_shareable([view, b"bytes"], 10) and not is_shareable([view, b"many bytes"], 10)
    assert not is_shareable([bytearray(LARGE)], 10)
    assert not is_shareable([], 1)
