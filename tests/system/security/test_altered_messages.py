"""Recorded, altered, reflected or foreign-keyed messages are refused (NEG-03, 04, 05).

`pytest -rP tests/system/security/test_altered_messages.py` shows the figures.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import socket
from collections.abc import Callable
from functools import partial

import pytest

from monarch_hpc.core.errors import AuthenticationError, FrameError
from monarch_hpc.core.ids import Identity, Role, new_allocation_id, new_incarnation
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.secure.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    Accepting,
    Dialing,
    check_proof,
    make_proof,
)
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.secure.records import RecordReader
from monarch_hpc.wire.frames import Frame, Kind, pack_head
from tests.system.support.byhand import ByHand, bits, flipped, last_words, plain, seal
from tests.system.support.parties import ALLOCATION, KEY, PATIENCE_S, Party, parties

__all__ = ["parties"]

HERE = Identity(ALLOCATION, Role.CONTROLLER, "here", new_incarnation())
THERE = Identity(ALLOCATION, Role.PROC, "there", new_incarnation())
MESSAGES = [plain(Frame(Kind.CALL, number, 0, b"pay %d" % number)) for number in range(4)]


def handshake() -> tuple[bytes, bytes, Cipher, Cipher]:
    """Run one true handshake; return both messages, the dialling side's send and the listening side's recv cipher."""
    dialing = Dialing(HERE, KEY, 0, "there")
    accepting = Accepting(THERE, KEY, "here")
    accepting.read(dialing.hello)
    answer, (_, receive) = accepting.answer()
    _, (send, _) = dialing.finish(answer)
    return dialing.hello, answer, send, receive


def accept(hello: bytes) -> tuple[bytes, tuple[Cipher, Cipher]]:
    """Handle a hello as the listening side does."""
    accepting = Accepting(THERE, KEY, "here")
    accepting.read(hello)
    return accepting.answer()


def refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except AuthenticationError:
        return True
    return False


@pytest.mark.slow
def test_no_bit_of_a_session_can_be_changed() -> None:
    hello, answer, send, receive = handshake()
    accepted: dict[str, int] = {}
    tried: dict[str, int] = {}

    def count(what: str, attempt: Callable[[], object]) -> None:
        tried[what] = tried.get(what, 0) + 1
        accepted[what] = accepted.get(what, 0) + (not refused(attempt))

    for forged in bits(hello):
        count("greetings", partial(Accepting(THERE, KEY, "here").read, forged))
    for forged in bits(answer):
        count("answers", partial(Dialing(HERE, KEY, 0, "there").finish, forged))
    proof = make_proof(send)
    for forged in bits(proof):
        count("proofs", partial(check_proof, copy.copy(receive), forged))
    check_proof(receive, proof)
    for size in (0, 1, 24, 64, 1000, 4000, 8000):
        text = os.urandom(size)
        sealed = send.seal(text)
        for forged in bits(sealed):
            count("records", partial(copy.copy(receive).open, forged))
        assert receive.open(sealed) == text
    print("accepted", accepted, "of", tried)
    assert set(accepted.values()) == {0}
    assert sum(tried.values()) >= 100_000


def where(server: Party) -> str:
    (address,) = server.node.listen(["127.0.0.1"])
    return address


def attempt(address: str, forge: Callable[[ByHand], None]) -> None:
    """Make one connection that *forge* spoils; return when the other side has closed it."""
    with ByHand(address) as session:
        with contextlib.suppress(OSError):  # reset while it still sends
            forge(session)
            session.sock.shutdown(socket.SHUT_WR)
        last_words(session.sock)


def test_recorded_sessions_are_not_accepted_whole_or_in_pieces(parties: Callable[..., Party]) -> None:
    server = parties()
    address = where(server)
    with ByHand(address) as one, ByHand(address) as two:
        for session in (one, two):
            session.prove()
            for record in _all(session):
                session.send(record)
        server.until(lambda: len(server.frames) == 2 * len(MESSAGES))
    first, second = one.sent, two.sent
    tried = 0
    for _ in range(100):
        for cut in (HELLO_BYTES - 1, HELLO_BYTES, HELLO_BYTES + PROOF_BYTES, len(first)):
            for data in (first, first[:cut] + second[cut:]):

                def forge(session: ByHand, data: bytes = data, cut: int = cut) -> None:
                    session.send(data[:cut])
                    if cut >= HELLO_BYTES:
                        session.sock.recv(4096)  # an answer, for the maker of that hello
                    session.send(data[cut:])

                attempt(address, forge)
                tried += 1
    server.until(lambda: len(server.lost) == 2)
    print("accepted", len(server.opened) - 2, "sessions of", tried)
    assert len(server.opened) == 2 and len(server.frames) == 2 * len(MESSAGES)


def test_a_recorded_greeting_is_answered_by_no_process_twice(parties: Callable[..., Party]) -> None:
    """An answer costs two curve operations, so a flood of one recording would slow the process down."""
    server, another = parties(), parties()
    address, elsewhere = where(server), where(another)
    with ByHand(address) as session:
        session.prove()
        server.until(lambda: len(server.opened) == 1)
        answers = [replayed(address, session.sent) for _ in range(50)]
        answers_elsewhere = [replayed(elsewhere, session.sent) for _ in range(50)]
    assert answers == [0] * 50
    assert answers_elsewhere == [ANSWER_BYTES] + [0] * 49, "to another process that hello is new"
    another.until(lambda: another.node.num_refused == 50)
    assert len(server.opened) == 1 and not another.opened


def replayed(address: str, recorded: bytes) -> int:
    """Return how many bytes the listening side sends in answer to a recorded session."""
    with socket.create_connection(parse_address(address), PATIENCE_S) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(recorded)
        return len(last_words(sock))
    return 0


def _all(session: ByHand) -> list[bytes]:
    return [session.record(message) for message in MESSAGES]


def test_records_of_a_proven_session_are_not_accepted_moved_lost_doubled_or_altered(
    parties: Callable[..., Party],
) -> None:
    server = parties()
    address = where(server)
    with ByHand(address) as other:
        other.prove()
        theirs = b"".join(_all(other))
    forgeries: list[Callable[[ByHand], bytes]] = [
        lambda session: b"".join(_all(session)[::-1]),
        lambda session: b"".join(_all(session)[1:]),
        lambda _session: theirs,
        lambda session: session.sent,
        lambda session: session.answer,
        lambda session: make_proof(session.open),
        lambda session: seal(session.open, MESSAGES[0]),
    ]
    size = len(theirs) // len(MESSAGES)
    forgeries += [
        lambda session, bit=bit: flipped(_all(session)[0], bit) + theirs  # type: ignore[misc]
        for bit in range(8 * size)
    ]
    for forge in forgeries:

        def send(session: ByHand, forge: Callable[[ByHand], bytes] = forge) -> None:
            session.prove()
            session.send(forge(session))

        attempt(address, send)
    server.until(lambda: len(server.lost) == len(forgeries) + 1)
    print("accepted", len(server.frames), "frames of", len(forgeries), "forged sessions")
    assert not server.frames
    with ByHand(address) as session:  # the same frame twice: the first is genuine
        session.prove()
        session.send(_all(session)[0] * 2)
        last_words(session.sock)
    assert len(server.frames) == 1


def _but_for_one_bit(proof: bytes) -> bytes:
    return proof[:-1] + bytes([proof[-1] ^ 1])


def test_proofs_that_are_none_open_nothing(parties: Callable[..., Party]) -> None:
    """Empty, all-zero, truncated, from other sessions, and the listening side's own records sent back."""
    server = parties()
    address = where(server)
    with ByHand(address) as other:
        other.greet()
        theirs = make_proof(other.seal)
    proofs: list[Callable[[ByHand], bytes]] = [
        lambda _session: b"",
        lambda _session: bytes(PROOF_BYTES),
        lambda session: make_proof(session.seal)[:-1],
        lambda session: _but_for_one_bit(make_proof(session.seal)),
        lambda _session: theirs,
        lambda session: make_proof(session.open),
        lambda session: session.answer[-PROOF_BYTES:],
        lambda session: seal(session.seal, MESSAGES[0]),
    ]
    for proof in proofs * 25:

        def send(session: ByHand, proof: Callable[[ByHand], bytes] = proof) -> None:
            session.greet()
            session.send(proof(session))

        attempt(address, send)
    server.until(lambda: server.node.num_refused == 25 * len(proofs) + 1)
    print("accepted", len(server.opened), "of", 25 * len(proofs))
    assert not server.opened


@pytest.mark.parametrize(
    ("what", "greeting"),
    [
        ("another key", lambda: Dialing(HERE, os.urandom(32), 0, "there")),
        ("no key", lambda: Dialing(HERE, bytes(32), 0, "there")),
        ("another allocation", lambda: Dialing(_of(allocation=new_allocation_id()), KEY, 0, "there")),
        ("another allocation and its key", lambda: Dialing(_of(allocation="ab" * 16), os.urandom(32), 0, "there")),
        ("an earlier incarnation", lambda: Dialing(HERE, KEY, THERE.incarnation - 1, "there")),
        ("our own incarnation", lambda: Dialing(_of(incarnation=THERE.incarnation), KEY, 0, "there")),
    ],
)
def test_what_was_valid_elsewhere_or_before_is_not_valid_here(what: str, greeting: Callable[[], Dialing]) -> None:
    accepted = sum(not refused(lambda: accept(greeting().hello)) for _ in range(200))
    print(f"{what}: accepted {accepted} of 200")
    assert accepted == 0


def _of(**changes: object) -> Identity:
    return dataclasses.replace(HERE, **changes)  # type: ignore[arg-type]


def test_a_controller_whose_time_is_over_is_refused_also_between_greeting_and_proof(
    parties: Callable[..., Party],
) -> None:
    server = parties()
    address = where(server)
    with ByHand(address, epoch=1) as early, ByHand(address, epoch=2) as successor, ByHand(address, epoch=1) as late:
        early.greet()
        successor.prove()
        server.until(lambda: len(server.opened) == 1)
        early.send(make_proof(early.seal))
        assert last_words(early.sock), "the reason is sent"
        with contextlib.suppress(OSError):
            late.prove()
        last_words(late.sock)
        server.until(lambda: server.node.num_refused == 2)
        assert server.opened[0].peer.epoch == 2 and len(server.opened) == 1
        assert server.opened[0].error is None


def test_a_forged_chunk_leaves_nothing_of_its_maker_in_memory() -> None:
    """Chunks are decrypted in place, maybe into memory that others see: one that fails authentication is wiped."""
    memory = memoryview(bytearray(b"own" * 40_000))
    seal = Cipher(KEY)
    head = pack_head(Frame(Kind.PUT, 0, 1, b"", [memory]))
    sealed_head, sealed_data = seal.seal(head), seal.seal(b"xxx" * 40_000)
    inbox = RecordReader(Cipher(KEY), 2**20, lambda _frame: None)
    inbox.landing = lambda _head, _body: [memory]

    def take(wire: bytes) -> None:
        while wire:
            room = inbox.room()
            size = min(len(room), len(wire))
            room[:size] = wire[:size]
            wire = wire[size:]
            inbox.arrived(size)

    with pytest.raises(FrameError):
        take(len(sealed_head).to_bytes(4, "little") + sealed_head + flipped(sealed_data, 8000))
    assert bytes(memory) == bytes(len(memory))
