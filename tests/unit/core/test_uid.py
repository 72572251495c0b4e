"""Names of processes, parsed and formatted as in Monarch programs."""

from __future__ import annotations

import pickle

import pytest

from monarch_hpc.core.uid import ProcId, Uid


@pytest.mark.parametrize(
    ("text", "label", "value"),
    [
        ("service", "service", None),
        ("service<8>", "service", 7),
        ("<1>", None, 0),
        ("<21>", None, 58),
        ("<JPwcyDCgEup>", None, 2**64 - 1),
        ("service<kv5xUjSXmBR>", "service", 8401264726337539175),
    ],
)
def test_a_uid_is_read_and_written(text: str, label: str | None, value: int | None) -> None:
    uid = Uid.from_string(text)
    assert (uid.label, uid.instance_value, str(uid)) == (label, value, text)
    assert uid.is_instance == (value is not None) and uid.is_singleton == (value is None)
    assert ProcId.from_string(text) == ProcId(uid) and str(ProcId(uid)) == text and ProcId(uid).label == label
    assert pickle.loads(pickle.dumps({uid: 1})) == {uid: 1}


def test_leading_zeros_say_nothing() -> None:
    assert str(Uid.from_string("service<11111111118>")) == "service<8>"


@pytest.mark.parametrize("text", ["", "a b", "x<>", "<0>", "<JPwcyDCgEuq>", "<l>", "a<8", "service<8>@tcp://h:1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Uid"):
        Uid.from_string(text)


def test_new_ones_differ() -> None:
    assert len({Uid.anonymous() for _ in range(100)}) == 100
    assert Uid.instance("service").label == "service"
    assert Uid.instance_from_value(7, "service") == Uid.from_string("service<8>")
