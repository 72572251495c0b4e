"""The handshake of two sides in memory: what each proves and learns."""

from __future__ import annotations

import dataclasses
import platform

import pytest

from monarch_hpc.core.errors import AuthenticationError, VersionMismatch
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.core.version import __version__
from monarch_hpc.transport.secure.handshake import ANSWER_BYTES, HELLO_BYTES, Accepting, Dialing, check_versions

_KEY = bytes(range(32))
_CONTROLLER = Identity("ab" * 16, Role.CONTROLLER, "login", incarnation=11, epoch=2)
_AGENT = Identity("ab" * 16, Role.AGENT, "n1", incarnation=22)


def test_both_sides_learn_who_the_other_is_and_share_keys() -> None:
    dialing = Dialing(_CONTROLLER, _KEY, wanted=22, address="tcp://10.0.0.1:1")
    assert len(dialing.hello) == HELLO_BYTES <= 256
    accepting = Accepting(_AGENT, _KEY, "tcp://10.0.0.9:5")
    caller, wanted = accepting.read(dialing.hello)
    answer, (send, receive) = accepting.answer()
    assert wanted == 22
    assert len(answer) == ANSWER_BYTES
    callee, (their_send, their_receive) = dialing.finish(answer)
    assert (caller.role, caller.host, caller.incarnation, caller.epoch) == (Role.CONTROLLER, "login", 11, 2)
    assert (callee.role, callee.host, callee.incarnation) == (Role.AGENT, "n1", 22)
    assert receive.open(their_send.seal(b"up")) == b"up"
    assert their_receive.open(send.seal(b"down")) == b"down"


@pytest.mark.parametrize(
    ("dialer", "key"),
    [
        (dataclasses.replace(_CONTROLLER, allocation="cd" * 16), _KEY),
        (_CONTROLLER, bytes(32)),
    ],
    ids=["another allocation", "another key"],
)
def test_who_does_not_belong_is_refused_on_the_first_message(dialer: Identity, key: bytes) -> None:
    hello = Dialing(dialer, key, 0, "tcp://10.0.0.1:1").hello
    with pytest.raises(AuthenticationError):
        Accepting(_AGENT, _KEY, "somewhere").read(hello)


def test_who_looks_for_another_process_gets_no_answer() -> None:
    accepting = Accepting(_AGENT, _KEY, "somewhere")
    assert accepting.read(Dialing(_CONTROLLER, _KEY, 23, "tcp://10.0.0.1:1").hello)[1] == 23
    with pytest.raises(AuthenticationError, match="looks for another process"):
        accepting.answer()


def test_a_changed_prologue_is_refused() -> None:
    hello = Dialing(_CONTROLLER, _KEY, 0, "tcp://10.0.0.1:1").hello
    for position in range(48):
        forged = bytearray(hello)
        forged[position] ^= 1
        with pytest.raises(AuthenticationError):
            Accepting(_AGENT, _KEY, "somewhere").read(bytes(forged))


def test_an_impostor_at_the_address_is_refused() -> None:
    dialing = Dialing(_CONTROLLER, _KEY, wanted=0, address="tcp://10.0.0.1:1")
    accepting = Accepting(_AGENT, _KEY, "somewhere")
    accepting.read(dialing.hello)
    answer, _ = accepting.answer()
    for position in range(ANSWER_BYTES):
        forged = bytearray(answer)
        forged[position] ^= 1
        fresh = Dialing(_CONTROLLER, _KEY, wanted=0, address="tcp://10.0.0.1:1")
        with pytest.raises(AuthenticationError):
            fresh.finish(bytes(forged))


def test_other_versions_are_named() -> None:
    here = platform.python_version()
    check_versions(here.rpartition(".")[0] + ".99", __version__, "agent on n1")
    with pytest.raises(VersionMismatch, match=r"Python differs: .* here, 3\.9\.1 \(agent on n1\) there"):
        check_versions("3.9.1", __version__, "agent on n1")
    with pytest.raises(VersionMismatch, match="monarch_hpc differs"):
        check_versions(here, "0.0.1", "agent on n1")
