"""Carries out orders from a socket, one JSON object per line, and answers each with one.

python -m benchmarks.seeing_ends PEER SOCKET, started by `benchmarks.programs` in the peer's own interpreter.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.seeing_ends.end import FAULTS, Missing, SeeingEnd

_ENDS = {"ours": "OurEnd", "torchmonarch": "MonarchEnd", "ray": "RayEnd", "dask": "DaskEnd"}
_NUM_QUESTIONS = 5
_NUM_CALLS_TOLD = 100
_LISTING_S = 120.0

Found = dict[str, Any]


def make_end(peer: str) -> SeeingEnd:
    """Return the end of *peer*."""
    end: SeeingEnd = getattr(importlib.import_module(f"benchmarks.seeing_ends.{peer}_end"), _ENDS[peer])()
    return end


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun_s = time.perf_counter()
    found = work()
    return time.perf_counter() - begun_s, found


def _start(end: SeeingEnd, num: int) -> Found:
    return {"s": _timed(lambda: end.start(recording=bool(num)))[0]}


def _echo(end: SeeingEnd, num: int) -> Found:
    before_s = time.process_time() + end.cpu_s()
    took_s, _ = _timed(lambda: end.echo(num))
    return {"cpu": (time.process_time() + end.cpu_s() - before_s) / num, "s": took_s / num}


def _first(end: SeeingEnd, _: int) -> Found:
    return {"s": _timed(end.count)[0]}


def _fill(end: SeeingEnd, num: int) -> Found:
    return {"s": _timed(lambda: end.fill(num))[0]}


def _group(end: SeeingEnd, _: int) -> Found:
    asked = [_timed(end.group) for _ in range(_NUM_QUESTIONS)]
    return {"s": statistics.median(took_s for took_s, _ in asked), "rows": asked[-1][1]}


def _memory(end: SeeingEnd, _: int) -> Found:
    """PSS of the helpers: memory that several map counts once."""
    pids = end.helpers()
    if not pids:
        raise Missing("no such process was found")
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return {"bytes": 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")), "num": len(pids)}


def _list(end: SeeingEnd, num: int) -> Found:
    end.crowd(num)
    argv = end.listing()
    took = []
    for _ in range(3):
        took_s, done = _timed(
            lambda: subprocess.run(argv, capture_output=True, text=True, timeout=_LISTING_S, check=False)
        )
        if done.returncode:
            raise Missing((done.stderr.strip() or done.stdout.strip() or "it failed").splitlines()[-1])
        took.append(took_s)
    return {"s": min(took), "lines": len(done.stdout.splitlines())}


def _tell(end: SeeingEnd, num: int) -> Found:
    """Let a fault happen; say what the product tells of it: a few words, calls, and whether it shows the stack."""
    end.echo(_NUM_CALLS_TOLD)
    end.inflict(FAULTS[num])

    def ask(question: Callable[[], Any]) -> str:
        try:
            return str(question())
        except Missing as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 -- of the peer, and what it says is the answer
            return f"no answer ({type(error).__name__})"

    return {"words": "; ".join((ask(end.state), f"calls: {ask(end.num_calls)}", f"stack: {ask(end.stack)}"))}


_ORDERS = {
    "start": _start,
    "echo": _echo,
    "first": _first,
    "fill": _fill,
    "group": _group,
    "memory": _memory,
    "list": _list,
    "tell": _tell,
}


def main() -> None:
    """Serve orders until the socket is closed."""
    peer, path = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(path)
        lines = control.makefile("rw")
        end = make_end(peer)
        for line in lines:
            order = json.loads(line)
            try:
                answer = _ORDERS[order["what"]](end, order["num"])
            except Missing as error:
                answer = {"missing": str(error)}
            except Exception as error:  # noqa: BLE001 -- whatever the peer raises is why its row is missing
                answer = {"missing": f"{type(error).__name__}: {error}"[:300]}
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
    end.close()
    os._exit(0)  # some peers wait for procs that are stopped


if __name__ == "__main__":
    main()
