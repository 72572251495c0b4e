from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.api import Ask, FabricKind
from monarch_hpc.transport.connect.negotiation import Offer, choose, decode_offer, encode_offer

ASKS = st.builds(Ask, st.sampled_from(["", "here", "there"]), st.booleans(), st.booleans(), st.sampled_from(["", "no"]))


@pytest.mark.parametrize(
    ("own", "other", "fabric"),
    [
        (Ask("here"), Ask("here"), FabricKind.UCX_SHM),
        (Ask("here", rdma=True, tcp=True), Ask("here", rdma=True, tcp=True), FabricKind.UCX_SHM),
        (Ask("here", rdma=True, tcp=True), Ask("there", rdma=True, tcp=True), FabricKind.UCX_RDMA),
        (Ask("here", rdma=True), Ask("there"), None),
        (Ask("here", tcp=True), Ask("there", tcp=True), FabricKind.UCX_TCP),
        (Ask("here", tcp=True), Ask("there"), None),
        (Ask("here"), Ask("there"), None),
        # An unknown place is shared with no process.
        (Ask(), Ask(), None),
        (Ask("here", problem="no libucp"), Ask("here"), None),
        (Ask("here"), Ask("here", problem="no libucp"), None),
    ],
)
def test_the_best_that_both_have(own: Ask, other: Ask, fabric: FabricKind | None) -> None:
    chosen, why = choose(own, other)
    assert chosen is fabric
    assert why


def test_a_problem_says_whose_it_is() -> None:
    assert choose(Ask("x", problem="no libucp"), Ask("x")) == (None, "no libucp")
    assert choose(Ask("x"), Ask("x", problem="no libucp")) == (None, "there: no libucp")


@given(ASKS, ASKS)
def test_both_sides_choose_the_same(own: Ask, other: Ask) -> None:
    assert choose(own, other)[0] == choose(other, own)[0]


@given(ASKS, st.binary(max_size=300), st.binary(max_size=16))
def test_an_offer_survives_the_way(ask: Ask, address: bytes, token: bytes) -> None:
    offer = Offer(ask, address, token)
    assert decode_offer(encode_offer(offer)) == offer


@given(st.binary(max_size=400) | st.builds(lambda size: b"[" * size, st.integers(0, 100_000)))
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode_offer(body)


@pytest.mark.parametrize("field", ["place", "rdma", "tcp", "problem", "address", "token"])
def test_a_field_of_another_type_is_refused(field: str) -> None:
    document = json.loads(encode_offer(Offer(Ask())))
    document[field] = 7
    with pytest.raises(FrameError):
        decode_offer(json.dumps(document).encode())
    del document[field]
    with pytest.raises(FrameError):
        decode_offer(json.dumps(document).encode())
