"""NIXL, from its wheel, as installed: its UCX backend between two processes of this host."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np
from nixl_cu12._api import nixl_agent

_PIECES, _PIECE_BYTES = 10_000, 4096


def _run(agent: Any, handle: Any) -> float:
    begun_s = time.perf_counter()
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    assert state == "DONE", state
    return time.perf_counter() - begun_s


def _own(num_bytes: int, answers: int, end: int) -> None:
    """Lend memory until *end* is closed."""
    agent = nixl_agent("owner")
    data = np.full(num_bytes, 7, np.uint8)
    agent.register_memory([(data.ctypes.data, num_bytes, 0, "")], mem_type="DRAM")
    with open(answers, "wb") as answer:
        answer.write(data.ctypes.data.to_bytes(8, "little") + agent.get_agent_metadata())
    os.read(end, 1)


def _use(num_bytes: int, num_rounds: int, answers: int) -> dict[str, float]:
    with open(answers, "rb") as answer:
        told = answer.read()
    there = int.from_bytes(told[:8], "little")
    agent = nixl_agent("user")
    here = np.zeros(max(num_bytes, _PIECES * _PIECE_BYTES), np.uint8)
    agent.register_memory([(here.ctypes.data, here.nbytes, 0, "")], mem_type="DRAM")
    owner = agent.add_remote_agent(told[8:])
    owner = owner.decode() if isinstance(owner, bytes) else owner
    whole = [agent.get_xfer_descs([(address, num_bytes, 0)], mem_type="DRAM") for address in (here.ctypes.data, there)]
    best = {}
    for what, operation in (("get", "READ"), ("put", "WRITE")):
        handle = agent.initialize_xfer(operation, *whole, owner)
        best[what] = min(_run(agent, handle) for _ in range(num_rounds + 1))
    pieces = [
        [(address + step * number * _PIECE_BYTES, _PIECE_BYTES, 0) for number in range(_PIECES)]
        for address, step in ((here.ctypes.data, 1), (there, 2))
    ]
    lists = [
        agent.prep_xfer_dlist(name, agent.get_xfer_descs(some, mem_type="DRAM"))
        for name, some in zip(("", owner), pieces, strict=True)
    ]
    places = np.arange(_PIECES, dtype=np.int32)
    handle = agent.make_prepped_xfer("READ", lists[0], places, lists[1], places)
    best["pieces"] = min(_run(agent, handle) for _ in range(num_rounds + 1))
    assert (here[: min(num_bytes, _PIECES * _PIECE_BYTES)] == 7).all()
    return best


def main() -> None:
    """Measure; the owner's process only lends memory."""
    num_bytes, num_rounds = map(int, sys.argv[1:])
    answers, ends = os.pipe(), os.pipe()
    if not os.fork():
        os.close(answers[0])
        os.close(ends[1])
        _own(max(num_bytes, 2 * _PIECES * _PIECE_BYTES), answers[1], ends[0])
        os._exit(0)
    os.close(answers[1])
    os.close(ends[0])
    print(json.dumps(_use(num_bytes, num_rounds, answers[0])), flush=True)
    os.close(ends[1])
    os.wait()


if __name__ == "__main__":
    main()
