"""One program of the comparison: carries out orders from a socket, one JSON object per line, and answers each with one.

python -m benchmarks.actor_ends PEER SOCKET, started by `benchmarks.programs` in the peer's own interpreter.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

from benchmarks.actor_ends.end import End

_WARM_UP = 200
_TURN, _TURNS = 50, 60
"""Calls in a turn, and turns, of two that are compared."""
_MORE = 1000
"""Actors beside a crowd whose memory is measured: enough that what Python's allocator takes at once does not count."""
_ENDS = {
    "ours": "ours.OurEnd",
    "torchmonarch": "torchmonarch.MonarchEnd",
    "ray": "ray.RayEnd",
    "dragon": "dragon.DragonEnd",
    "xoscar": "xoscar.XoscarEnd",
    "torch-rpc": "torch_rpc.RpcEnd",
}

Found = dict[str, float]


def make_end(peer: str) -> End:
    """Return the end of *peer*."""
    module, _, name = _ENDS[peer].partition(".")
    end: End = getattr(importlib.import_module(f"benchmarks.actor_ends.{module}_end"), name)()
    return end


def private_bytes(pid: int) -> int:
    """USS: memory that no other process shares."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _tails(took: list[float]) -> Found:
    took.sort()
    return {"p50": statistics.median(took), "p99": took[len(took) * 99 // 100]}


def _with_cpu(end: End, num: int, work: Callable[[], Found]) -> Found:
    far_s, near_s = end.cpu_s(), time.process_time()
    found = work()
    near_s = time.process_time() - near_s
    return {**found, "cpu": (near_s + end.cpu_s() - far_s) / num}


def _echo(end: End, num: int) -> Found:
    end.echo(_WARM_UP)
    return _with_cpu(end, num, lambda: _tails(end.echo(num)))


def _pipeline(end: End, num: int) -> Found:
    end.pipeline(min(num, _WARM_UP))
    return _with_cpu(end, num, lambda: {"rate": num / end.pipeline(num)})


def _call(end: End, num: int) -> Found:
    end.call(min(num, 50))
    return _tails(end.call(num))


def _chat(end: End, num: int) -> Found:
    end.spawn(2)
    end.chat(_WARM_UP)
    found = _tails(end.chat(num))
    end.stop()
    return found


def _crowd(end: End, num: int) -> Found:
    end.spawn(1)
    try:
        return _beside_crowd(end, num)
    finally:
        end.stop()


def _beside_crowd(end: End, num: int) -> Found:
    end.echo(_WARM_UP)
    found = _with_cpu(end, num, lambda: _fill(end, num))
    alone = type(end)()
    alone.start()
    alone.spawn(1)
    try:
        waiting_s, waiting_ratio = _compare(end.waiting, alone.waiting)
        return {
            **found,
            "waiting": waiting_s,
            "ratio": _compare(end.echo, alone.echo)[1],
            "waiting_ratio": waiting_ratio,
            "each": _each(end, range(num, num + min(num, _MORE))),
        }
    finally:
        alone.stop()


def _fill(end: End, num: int) -> Found:
    begun_s = time.perf_counter()
    end.crowd(range(num))
    return {"s": time.perf_counter() - begun_s}


def _each(end: End, more: range) -> float:
    """Return the memory of each of *more* actors, in bytes.

    The first of a proc also pay for what it makes once: 2 to 5 MiB, depending on what it shares with a zygote.
    """
    before = private_bytes(end.pids()[0])
    end.crowd(more)
    return (private_bytes(end.pids()[0]) - before) / len(more)


def _compare(beside: Callable[[int], list[float]], alone: Callable[[int], list[float]]) -> tuple[float, float]:
    """Return the median of the calls alone, in seconds, and of those beside a crowd as a multiple of it.

    They take turns that are short beside changes of the machine's load, which then hit both alike.
    """
    took: tuple[list[float], list[float]] = ([], [])
    for call in (beside, alone):
        call(_WARM_UP)
    for _ in range(_TURNS):
        for call, times in zip((beside, alone), took, strict=True):
            times += call(_TURN)
    beside_s, alone_s = map(statistics.median, took)
    return alone_s, beside_s / alone_s


def _spawn(end: End, num: int) -> Found:
    begun_s = time.perf_counter()
    end.spawn(num)
    return {"s": time.perf_counter() - begun_s}


def _memory(end: End, num: int) -> Found:
    uss = statistics.median(private_bytes(pid) for pid in end.pids())
    zygote = end.zygote()
    return {"uss": uss, "over": uss - private_bytes(zygote)} if zygote else {"uss": uss}


def _kill(end: End, num: int, how: str = "SIGKILL") -> Found:
    took = []
    for number in range(num):
        end.spawn(1)
        took.append(end.kill(os.path.join(tempfile.gettempdir(), f"{how}{number}"), how))
    return _tails(took)


def _push(end: End, num: int) -> Found:
    import numpy as np

    end.spawn(1)
    array = np.ones(256 * 2**20, np.uint8)
    end.push(array)
    return {"rate": array.nbytes / min(end.push(array) for _ in range(num))}


def _start(end: End, num: int) -> Found:
    begun_s = time.perf_counter()
    end.start()
    end.spawn(1)
    return {"s": time.perf_counter() - begun_s}


def _stop(end: End, num: int) -> Found:
    end.stop()
    return {}


_WORK: dict[str, Callable[[End, int], Found]] = {
    "start": _start,
    "echo": _echo,
    "pipeline": _pipeline,
    "stop": _stop,
    "chat": _chat,
    "crowd": _crowd,
    "spawn": _spawn,
    "memory": _memory,
    "call": _call,
    "kill": _kill,
    "segfault": partial(_kill, how="SIGSEGV"),
    "exit": partial(_kill, how="exit"),
    "stop-process": partial(_kill, how="SIGSTOP"),
    "push": _push,
}


def main() -> None:
    """Carry out orders until the socket is closed."""
    peer, path = sys.argv[1:]
    control = socket.socket(socket.AF_UNIX)
    control.connect(path)
    lines = control.makefile("rw")
    end: End | None = None
    for line in lines:
        order = json.loads(line)
        try:
            end = end or make_end(peer)
            answer: dict[str, object] = dict(_WORK[order["what"]](end, order["num"]))
        except Exception as error:  # noqa: BLE001 -- a measurement that a peer cannot do is reported, and skipped
            lines_of_error = str(error).strip().splitlines() or [""]
            answer = {"missing": f"{type(error).__name__}: {lines_of_error[-1]}"}
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
    if end is not None:
        end.close()
    os._exit(0)  # the parent ends the remaining processes


if __name__ == "__main__":
    main()
