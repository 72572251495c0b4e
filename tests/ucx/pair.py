"""Runs drills between two processes connected by UCX alone: `python -m tests.ucx.pair LIBUCP DRILL [COUNT]`.

The drill runs in the first process; the second one, its child, echoes what it receives. Drills are programs and not
test functions, since UCX must not be loaded into pytest's process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from monarch_hpc.transport.ucx.front import place
from monarch_hpc.transport.ucx.library import load_library
from tests.ucx.device import DeviceMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


PATIENCE_S = 60.0
HEAD = b"head"
RECORD_BYTES = 64
"""Size of every record here: UCX may deliver several at once, so that they need a known length."""
STOP = HEAD + b"stop".ljust(RECORD_BYTES - len(HEAD))
_PR_SET_PDEATHSIG = 1
AWAY = HEAD + b"away".ljust(RECORD_BYTES - len(HEAD))
"""The echo confirms this record, and then stops driving until it gets a line on its standard input."""
LENT_BYTES = 1 << 20
"""Size of the echo's memory."""
WINDOW = 128
"""Maximum number of records in flight, as with credit."""


class End:
    """One end of the lane: a worker, which this thread drives, and the messages received."""

    def __init__(self, libucp: str) -> None:
        library = load_library(libucp)
        assert library.path, library.reason
        from monarch_hpc.transport.ucx import _ucx

        self.ucx = _ucx
        self.worker = _ucx.Worker(1 << 30, place)
        self.lane = self.worker.open(self)
        self.epoll = select.epoll()
        self.epoll.register(self.worker.fd, select.EPOLLIN)
        self.num_records = self.num_bulk = self.num_done = self.num_wired = 0
        self.error = 0
        self.call_back: Callable[[], None] = lambda: None
        self.hear: Callable[[], str] = str
        self.on_record: Callable[[bytes], None] = lambda _record: None
        self.on_bulk: Callable[[Buffer], None] = lambda _landing: None
        # Of a lane that `lands`.
        self.on_whole: Callable[[int, int, Buffer], None] = lambda _sequence, _container, _placed: None
        self.land: Callable[[int, int], object] = lambda _sequence, _num_bytes: None

    @property
    def offer(self) -> str:
        return f"{self.worker.address.hex()} {self.lane.token.hex()}"

    def connect(self, offer: str) -> None:
        address, token = offer.split()
        self.lane.connect(bytes.fromhex(address), bytes.fromhex(token))

    def send_bulk(self, body: Buffer) -> None:
        self.lane.send_bulk(body, self.lane.reserve(1))

    def step(self, timeout_s: float = 0.0) -> None:
        """Drive once, and handle the events."""
        self.worker.poll(self.epoll.fileno(), 0.0, timeout_s)
        for event in self.worker.take():
            if event[0] == self.ucx.SMALL:
                data = event[3] or b""
                for at in range(0, len(data), RECORD_BYTES):
                    self.num_records += 1
                    self.on_record(data[at : at + RECORD_BYTES])
            elif event[0] == self.ucx.BULK:
                if event[4] is None:
                    self._landed(event[3])
                else:
                    event[4].on_done = lambda landing=event[3]: self._landed(landing)
            elif event[0] == self.ucx.DONE:
                self.num_done += 1
                # A closed lane ends its operations with UNREACHABLE (-6) or CANCELED (-16).
                assert event[1].status in (0, -6, -16, -25) or self.error, event[1].status
                if event[1].on_done is not None and event[1].status == 0:
                    event[1].on_done()
            elif event[0] == self.ucx.ERROR:
                self.error = event[2]
            elif event[0] == self.ucx.WIRED:
                self.num_wired += 1

    def _landed(self, landing: Buffer | MemoryError) -> None:
        if isinstance(landing, MemoryError):
            raise landing
        self.num_bulk += 1
        self.on_bulk(landing)

    def until(self, condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, f"{self.num_records} records, {self.num_bulk} bulk, error {self.error}"
            self.step(0.1)

    def close(self) -> None:
        self.lane.close()
        self.worker.close()
        self.epoll.close()


def echo(libucp: str, device: int = 0) -> None:
    """Echo all records and bulk messages until STOP; lend memory, on the GPU if *device* is 1."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # shared memory alone reports a death late
    end = End(libucp)
    memory = DeviceMemory(bytes(LENT_BYTES)) if device else bytearray(LENT_BYTES)
    registered = end.worker.register(end.ucx.Span(memory, True), True)
    print(end.offer, registered.key.hex(), registered.span.address, flush=True)
    end.connect(sys.stdin.readline())
    over: list[bytes] = []

    def on_record(record: bytes) -> None:
        if record == STOP:
            over.append(record)
        elif record == AWAY:
            print("away", flush=True)
            sys.stdin.readline()
        else:
            end.lane.send(HEAD, record[len(HEAD) :], True)

    end.on_record = on_record
    end.on_bulk = end.send_bulk
    while not over and not end.error:
        end.step(0.1)
    # The last messages must leave before the lane is closed.
    flushed = None if end.error else end.lane.flush()
    while flushed is not None and flushed.status == 1 and not end.error:
        end.step(0.1)
    registered.close()
    end.close()


def start_echo(libucp: str, device: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ucx.pair", libucp, "echo", str(device)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def joined(libucp: str, device: int = 0) -> Iterator[tuple[End, bytes, int]]:
    """Open a lane to an echo; yield our end, and the key and address of the echo's memory."""
    with start_echo(libucp, device) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        end = End(libucp)
        address, token, key, place = process.stdout.readline().split()
        end.connect(f"{address} {token}")
        print(end.offer, file=process.stdin, flush=True)
        end.call_back = partial(print, file=process.stdin, flush=True)
        end.hear = process.stdout.readline
        try:
            yield end, bytes.fromhex(key), int(place)
            end.lane.send(HEAD, STOP[len(HEAD) :], True)
            end.until(lambda: process.poll() is not None)
            assert process.returncode == 0
        finally:
            process.kill()
            end.close()


def exchange(end: End, count: int) -> None:
    """Send *count* records, each in a separate message, and wait for the answers."""
    start = end.num_records
    for number in range(count):
        end.lane.send(HEAD, b"%060d" % number, True)
        end.step()
        end.until(lambda sent=number + 1: sent - (end.num_records - start) < WINDOW)  # type: ignore[misc]
    end.until(lambda: end.num_records - start == count)


def exchange_bulk(end: End, count: int, body: bytes) -> None:
    start = end.num_bulk
    for number in range(count):
        end.send_bulk(body)
        end.until(lambda sent=number + 1: sent - (end.num_bulk - start) < 4)  # type: ignore[misc]
    end.until(lambda: end.num_bulk - start == count)


def move(end: End, count: int, key: bytes, address: int) -> None:
    """Get and put the echo's memory."""
    for _ in range(count):
        remote = end.lane.unpack(key)
        local = end.ucx.Span(bytearray(4096), True)
        operations = [end.lane.put(local, address, remote), end.lane.get(local, address, remote), end.lane.flush()]
        end.until(lambda operations=operations: all(operation.status != 1 for operation in operations))  # type: ignore[misc]
        assert [operation.status for operation in operations] == [0, 0, 0]


def gpu(libucp: str, device: int) -> None:
    """Put GPU memory to the echo's memory, also on the GPU if *device* is 1, and get it back."""
    content = os.urandom(LENT_BYTES)
    ours, back = DeviceMemory(content), DeviceMemory(bytes(LENT_BYTES))
    with joined(libucp, device) as (end, key, address):
        remote = end.lane.unpack(key)
        put = [end.lane.put(end.ucx.Span(ours, False), address, remote), end.lane.flush()]
        end.until(lambda: all(operation.status != 1 for operation in put))
        got = end.lane.get(end.ucx.Span(back, True), address, remote)
        end.until(lambda: got.status != 1)
        assert [operation.status for operation in (*put, got)] == [0, 0, 0]
        print(*end.lane.transports, "the same" if back.read() == content else "something else")


def rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of malloc: ten counts, the fifth and eighth of them bytes in use."""

    _fields_ = (("counts", ctypes.c_size_t * 10),)


def heap_bytes() -> int:
    """The bytes that malloc has given out; of objects, too, under PYTHONMALLOC=malloc."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo
    gc.collect()
    counts = mallinfo2().counts
    return int(counts[4] + counts[7])


def grow(libucp: str, count: int) -> None:
    """Print the growth of the heap and of the process in bytes over *count* records and fewer of the other kinds.

    Each kind is warmed up by a quarter of its number.
    """
    with joined(libucp) as (end, key, address):
        kinds: dict[str, tuple[int, Callable[[int], None]]] = {
            "records": (1, lambda number: exchange(end, number)),
            "bulk": (50, lambda number: exchange_bulk(end, number, bytes(20_000))),
            "rendezvous": (500, lambda number: exchange_bulk(end, number, bytes(1_000_000))),
            "moves": (50, lambda number: move(end, number, key, address)),
        }
        for name, (one_in, traffic) in kinds.items():
            traffic(count // one_in // 4 + 4)
            heap, rss, began_s = heap_bytes(), rss_bytes(), time.monotonic()
            traffic(count // one_in + 1)
            print(name, heap_bytes() - heap, rss_bytes() - rss, f"{time.monotonic() - began_s:.1f}", flush=True)


def fork(libucp: str) -> None:
    """Fork amid traffic: the child finds UCX closed, exits normally, and does not disturb the parent."""
    with joined(libucp) as (end, key, address):
        exchange(end, 100)
        registered = end.worker.register(end.ucx.Span(bytearray(4096), True), True)
        remote = end.lane.unpack(key)
        attempts: tuple[Callable[[], object], ...] = (
            lambda: end.ucx.Worker(1 << 20, place),
            lambda: end.worker.open(end),
            lambda: end.worker.poll(end.epoll.fileno(), 0.0, 0.0),
            end.worker.take,
            lambda: end.lane.send(HEAD, b"from the child", True),
            lambda: end.lane.get(end.ucx.Span(bytearray(8), True), address, remote),
        )
        child = os.fork()
        if not child:
            all_refused = all(is_refused(attempt) for attempt in attempts)
            registered.close()
            # The usual end of a program: open objects are closed, then atexit, then the destructors of all libraries.
            sys.exit(not all_refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        exchange(end, 1000)
        move(end, 10, key, address)
        print("went on")


def away(libucp: str) -> None:
    """While no Python thread drives, queued records are sent, and the peer's memory can be reached."""
    with joined(libucp) as (end, key, address):
        exchange(end, 100)
        end.lane.send(HEAD, b"%060d" % 0, False)
        end.lane.send(HEAD, AWAY[len(HEAD) :], False)  # waits in a batch, and this thread does not poll
        assert end.hear() == "away\n"
        move(end, 10, key, address)
        end.call_back()
        exchange(end, 100)
        print("went on")


def idle(libucp: str) -> None:
    """Print how often UCX's thread woke while a thread slept in the worker for a second after some traffic."""
    with joined(libucp) as (end, _key, _address):
        exchange(end, 100)
        end.step(0.1)
        end.until(lambda: end.num_wired == 1)
        before = end.worker.num_thread_wakes
        end.step(1.0)
        print(end.worker.num_thread_wakes - before)


def frozen(libucp: str) -> None:
    """Print how long closing ends with a frozen peer took; then kill the peer, and expect nothing left."""
    with start_echo(libucp) as process:
        assert process.stdout is not None
        address, token, _key, _place = process.stdout.readline().split()
        process.send_signal(signal.SIGSTOP)
        longest_s, ends = 0.0, [End(libucp)]
        ucx = ends[0].ucx
        try:
            for number in range(ucx.ABANDONED_MAX):
                end = ends[number]
                end.connect(f"{address} {token}")
                end.lane.send(HEAD, bytes(RECORD_BYTES), True)
                end.step(0.0)
                began_s = time.monotonic()
                end.worker.close()
                longest_s = max(longest_s, time.monotonic() - began_s)
                if number + 1 < ucx.ABANDONED_MAX:
                    ends.append(End(libucp))
            full = ucx.num_abandoned()
            refused = ""
            try:
                ends.append(End(libucp))
            except RuntimeError as error:
                refused = str(error)
        finally:
            process.kill()
            process.wait()
        end_s = time.monotonic() + PATIENCE_S
        while ucx.num_abandoned() and time.monotonic() < end_s:
            with contextlib.suppress(RuntimeError):
                End(libucp).close()
    print(json.dumps({"longest_s": longest_s, "full": full, "refused": refused, "left": ucx.num_abandoned()}))


def leave(libucp: str) -> None:
    """Exit amid traffic, with everything open, a thread in UCX and no goodbye to the peer."""
    process = start_echo(libucp)
    end = End(libucp)
    assert process.stdin is not None
    assert process.stdout is not None
    address, token, _key, _place = process.stdout.readline().split()
    end.connect(f"{address} {token}")
    print(end.offer, file=process.stdin, flush=True)
    exchange(end, 100)
    for _ in range(10):
        end.send_bulk(bytes(1_000_000))
    threading.Thread(target=end.until, args=(lambda: False,), daemon=True).start()
    print("left")


def lost(libucp: str) -> None:
    """The program closes UCX's descriptor: the next driver is told, and nothing of UCX is used any more."""
    with contextlib.suppress(OSError), joined(libucp) as (end, _key, _address):
        exchange(end, 100)
        os.close(end.worker.fd)
        end.step(PATIENCE_S)
    print(f"told {end.worker.close()}")


def is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except RuntimeError as error:
        return "forked" in str(error)
    return False


DRILLS: dict[str, Callable[..., None]] = {
    "away": away,
    "echo": echo,
    "fork": fork,
    "frozen": frozen,
    "gpu": gpu,
    "grow": grow,
    "idle": idle,
    "leave": leave,
    "lost": lost,
}

if __name__ == "__main__":
    DRILLS[sys.argv[2]](sys.argv[1], *map(int, sys.argv[3:]))
