"""The messages by which the two ends of a channel choose a faster fabric, and the choice.

Pure: both sides see the same two `Capabilities` and reach the same result. The side that dialled speaks first:

    ask     the fabrics that it could use
    offer   the other side's own ask, and the address and token of a lane that it opened; or why there is none
    offer   the first side's address and token

Then each side sends SWITCH on the socket once it is connected, and all later frames on the lane.
"""

from __future__ import annotations

import base64
import json

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.api import Capabilities, FabricKind

__all__ = ["Offer", "choose", "decode_offer", "encode_offer"]

_MAX_OFFER_BYTES = 64 * 1024  # a worker's address takes some hundred bytes for each of its devices


@dataclass(frozen=True, slots=True)
class Offer:
    """One message; see the module docstring.

    Attributes:
        address: address of the sender's fabric; empty until it has started.
        token: must be in each message to the sender.
    """

    capabilities: Capabilities
    address: bytes = b""
    token: bytes = b""


def choose(own: Capabilities, other: Capabilities) -> tuple[FabricKind | None, str]:
    """Return the fabric to use, None for the socket alone, and the reason."""
    if own.problem:
        return None, own.problem
    if other.problem:
        return None, f"there: {other.problem}"
    if own.place and own.place == other.place:
        return FabricKind.UCX_SHM, "same host"
    if own.rdma and other.rdma:
        return FabricKind.UCX_RDMA, "both have RDMA"
    if own.tcp and other.tcp:
        return FabricKind.UCX_TCP, "fabric.trusted"
    if own.tcp or other.tcp:
        return None, "only one side trusts the network (fabric.trusted)"
    fault = own.rdma_fault or (f"there: {other.rdma_fault}" if other.rdma_fault else "no RDMA on both sides")
    return None, f"another host, {fault}, and fabric.trusted is false"


def encode_offer(offer: Offer) -> bytes:
    """Render *offer* as the body of a frame."""
    return json.dumps(
        {
            "place": offer.capabilities.place,
            "rdma": offer.capabilities.rdma,
            "tcp": offer.capabilities.tcp,
            "rdma_fault": offer.capabilities.rdma_fault,
            "problem": offer.capabilities.problem,
            "address": base64.b64encode(offer.address).decode(),
            "token": offer.token.hex(),
        }
    ).encode()


def decode_offer(body: bytes) -> Offer:
    """Read what `encode_offer` rendered.

    Raises:
        FrameError: *body* is not an offer.
    """
    try:
        if len(body) > _MAX_OFFER_BYTES:
            raise ValueError(f"{len(body)} bytes")
        fields = json.loads(body)
        texts = [fields[name] for name in ("place", "problem", "rdma_fault", "address", "token")]
        rdma, tcp = fields["rdma"], fields["tcp"]
        if not all(isinstance(text, str) for text in texts) or {type(rdma), type(tcp)} != {bool}:
            raise ValueError("a field of another type")
        place, problem, rdma_fault, address, token = texts
        capabilities = Capabilities(place, rdma, tcp, problem, rdma_fault)
        return Offer(capabilities, base64.b64decode(address, validate=True), bytes.fromhex(token))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError(f"an offer that cannot be read: {error}") from error
