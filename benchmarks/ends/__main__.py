"""One process of a row: carries out orders from a socket, one JSON object per line, and answers each with one.

python -m benchmarks.ends ROW SIDE SOCKET CPU, started by `benchmarks.transport`.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys

from benchmarks.ends.bare import MpiEnd, PipeEnd, SocketEnd, ZmqEnd
from benchmarks.ends.end import End, Missing, cpu_s

_WARM_UP = 50


def make_end(row: str, *, near: bool) -> End:
    """Return the end for a row of the table."""
    if row == "pipe":
        return PipeEnd(near=near)
    if row == "socket":
        return SocketEnd(near=near)
    if row.startswith("zmq-"):
        return ZmqEnd(near=near, scheme=row.removeprefix("zmq-"))
    if row.startswith("mpi-"):
        return MpiEnd()
    from benchmarks.ends.ours import OurEnd

    return OurEnd(near=near, fabric=row.removesuffix("-spin"), spins=row.endswith("-spin"))


def measure(end: End, what: str, num: int, nbytes: int, key: str) -> dict[str, float | str]:
    """Carry out one order."""
    if what == "open":
        return {"address": end.open(key)}
    if what == "hold":
        return {"key": end.hold(nbytes)}
    if what == "ping":
        took = sorted(end.ping(num + _WARM_UP, nbytes)[_WARM_UP:])
        return {"value": statistics.median(took), "p99": took[len(took) * 99 // 100]} if took else {}
    if what == "cpu":
        return {"value": cpu_s()}
    if what == "idle":
        return {"value": end.idle(float(num))}
    if what == "pour":
        return {"value": end.pour(num, nbytes)}
    if what == "fetch":
        return {"value": end.fetch(key, num, nbytes)}
    if what == "store":
        return {"value": end.store(key, num, nbytes)}
    raise ValueError(what)


def main() -> None:
    """Carry out orders until the socket is closed."""
    row, side, path, cpus = sys.argv[1:]
    if side == "rank":
        side = "near" if os.environ["OMPI_COMM_WORLD_RANK"] == "0" else "far"
    if cpus:
        near_cpu, far_cpu = (int(cpu) for cpu in cpus.split(","))
        os.sched_setaffinity(0, {near_cpu if side == "near" else far_cpu})
    control = socket.socket(socket.AF_UNIX)
    control.connect(path)
    lines = control.makefile("rw")

    def say(answer: dict[str, float | str]) -> None:
        lines.write(json.dumps(answer) + "\n")
        lines.flush()

    say({"row": row, "side": side})
    try:
        end = make_end(row, near=side == "near")
    except (Missing, ImportError) as error:
        say({"missing": str(error)})
        return
    say({})
    for line in lines:
        order = json.loads(line)
        try:
            say(measure(end, **order))
        except Missing as error:
            say({"missing": str(error)})
    os._exit(0)  # nothing here needs to be closed in order


if __name__ == "__main__":
    main()
