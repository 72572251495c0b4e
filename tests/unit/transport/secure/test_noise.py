"""Our handshake works with an independent implementation, and fails without the key."""

from __future__ import annotations

import warnings

import pytest

from monarch_hpc.core.errors import AuthenticationError
from monarch_hpc.transport.secure.noise import TAG_BYTES, Cipher, Initiator, Responder

with warnings.catch_warnings():  # the reference is old; its warnings are not ours
    warnings.simplefilter("ignore")
    from noise.connection import NoiseConnection

_KEY = bytes(range(32))
_PROLOGUE = b"prologue of a test"


def _reference(initiator: bool, key: bytes = _KEY, prologue: bytes = _PROLOGUE) -> NoiseConnection:
    connection = NoiseConnection.from_name(b"Noise_NNpsk0_25519_AESGCM_SHA256")
    connection.set_psks(psk=key)
    connection.set_prologue(prologue)
    if initiator:
        connection.set_as_initiator()
    else:
        connection.set_as_responder()
    connection.start_handshake()
    return connection


def test_our_initiator_talks_to_the_reference() -> None:
    ours, reference = Initiator(_PROLOGUE, _KEY), _reference(initiator=False)
    assert reference.read_message(ours.first(b"card")) == b"card"
    payload, send, receive = ours.finish(bytes(reference.write_message(b"answer")))
    assert payload == b"answer"
    for message in (b"", b"one", b"two" * 1000):
        assert reference.decrypt(send.seal(message)) == message
        assert receive.open(reference.encrypt(message)) == message


def test_our_responder_talks_to_the_reference() -> None:
    ours, reference = Responder(_PROLOGUE, _KEY), _reference(initiator=True)
    assert ours.read(bytes(reference.write_message(b"card"))) == b"card"
    answer, send, receive = ours.answer(b"answer")
    assert reference.read_message(answer) == b"answer"
    for message in (b"", b"one", b"two" * 1000):
        assert reference.decrypt(send.seal(message)) == message
        assert receive.open(reference.encrypt(message)) == message


@pytest.mark.parametrize(("key", "prologue"), [(bytes(32), _PROLOGUE), (_KEY, b"another")])
def test_another_key_or_prologue_fails_on_the_first_message(key: bytes, prologue: bytes) -> None:
    with pytest.raises(AuthenticationError):
        Responder(_PROLOGUE, _KEY).read(Initiator(prologue, key).first(b"card"))


def test_every_flipped_bit_of_the_first_message_is_refused() -> None:
    first = Initiator(_PROLOGUE, _KEY).first(b"card")
    for position in range(len(first)):
        forged = bytearray(first)
        forged[position] ^= 1
        with pytest.raises(AuthenticationError):
            Responder(_PROLOGUE, _KEY).read(bytes(forged))


def test_a_reflected_greeting_is_refused() -> None:
    ours = Initiator(_PROLOGUE, _KEY)
    with pytest.raises(AuthenticationError):
        ours.finish(ours.first(b"card"))


def test_records_that_are_repeated_lost_or_swapped_do_not_open() -> None:
    sender = Cipher(_KEY)
    sealed = [sender.seal(text) for text in (b"first", b"second", b"third")]
    for taken, wrong in ([0], 0), ([], 1), ([0], 2):
        receiver = Cipher(_KEY)
        for index in taken:
            receiver.open(sealed[index])
        with pytest.raises(AuthenticationError):
            receiver.open(sealed[wrong])


def test_sealing_in_place_gives_the_same_bytes() -> None:
    plain = b"some record"
    target = bytearray(len(plain) + TAG_BYTES)
    Cipher(_KEY).seal_into(plain, memoryview(target))
    assert bytes(target) == Cipher(_KEY).seal(plain)
    opened = bytearray(len(plain))
    Cipher(_KEY).open_into(target, memoryview(opened))
    assert bytes(opened) == plain
