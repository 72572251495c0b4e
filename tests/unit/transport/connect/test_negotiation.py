from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.api import Capabilities, FabricKind
from monarch_hpc.transport.connect.negotiation import Offer, choose, decode_offer, encode_offer

CAPABILITIES = st.builds(
    Capabilities,
    st.sampled_from(["", "here", "there"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "no"]),
    st.sampled_from(["", "no RDMA"]),
)


@pytest.mark.parametrize(
    ("own", "other", "fabric"),
    [
        (Capabilities("here"), Capabilities("here"), FabricKind.UCX_SHM),
        (Capabilities("here", rdma=True, tcp=True), Capabilities("here", rdma=True, tcp=True), FabricKind.UCX_SHM),
        (Capabilities("here", rdma=True, tcp=True), Capabilities("there", rdma=True, tcp=True), FabricKind.UCX_RDMA),
        (Capabilities("here", rdma=True), Capabilities("there"), None),
        (Capabilities("here", tcp=True), Capabilities("there", tcp=True), FabricKind.UCX_TCP),
        (Capabilities("here", tcp=True), Capabilities("there"), None),
        (Capabilities("here"), Capabilities("there"), None),
        # An unknown place is shared with no process.
        (Capabilities(), Capabilities(), None),
        (Capabilities("here", problem="no libucp"), Capabilities("here"), None),
        (Capabilities("here"), Capabilities("here", problem="no libucp"), None),
    ],
)
def test_the_best_that_both_have(own: Capabilities, other: Capabilities, fabric: FabricKind | None) -> None:
    chosen, why = choose(own, other)
    assert chosen is fabric
    assert why


def test_a_problem_says_whose_it_is() -> None:
    assert choose(Capabilities("x", problem="no libucp"), Capabilities("x")) == (None, "no libucp")
    assert choose(Capabilities("x"), Capabilities("x", problem="no libucp")) == (None, "there: no libucp")


def test_a_network_that_does_not_deliver_is_named() -> None:
    faulty, sound = Capabilities("here", rdma_fault="SIGABRT ended it"), Capabilities("there", rdma=True)
    assert "another host, SIGABRT ended it" in choose(faulty, sound)[1]
    assert "another host, there: SIGABRT ended it" in choose(sound, faulty)[1]


@given(CAPABILITIES, CAPABILITIES)
def test_both_sides_choose_the_same(own: Capabilities, other: Capabilities) -> None:
    assert choose(own, other)[0] == choose(other, own)[0]


@given(CAPABILITIES, st.binary(max_size=300), st.binary(max_size=16))
def test_an_offer_survives_the_way(capabilities: Capabilities, address: bytes, token: bytes) -> None:
    offer = Offer(capabilities, address, token)
    assert decode_offer(encode_offer(offer)) == offer


@given(st.binary(max_size=400) | st.builds(lambda size: b"[" * size, st.integers(0, 100_000)))
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode_offer(body)


@pytest.mark.parametrize("field", ["place", "rdma", "tcp", "problem", "rdma_fault", "address", "token"])
def test_a_field_of_another_type_is_refused(field: str) -> None:
    document = json.loads(encode_offer(Offer(Capabilities())))
    document[field] = 7
    with pytest.raises(FrameError):
        decode_offer(json.dumps(document).encode())
    del document[field]
    with pytest.raises(FrameError):
        decode_offer(json.dumps(document).encode())
