"""The I/O engine: waiting threads drive it, and none is left asleep."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from monarch_hpc.actor.future import Future
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import EngineFailed
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from tests.system.support.controlling import controlled

_PATIENCE_S = 60.0


def test_a_waiting_thread_runs_the_callbacks_itself(engine: Engine) -> None:
    read_fd, write_fd = os.pipe()
    seen: list[int] = []
    signal = Flag(engine)

    def on_ready(_mask: int) -> None:
        os.read(read_fd, 1)
        seen.append(threading.get_ident())
        if len(seen) == 50:
            signal.set()
        else:
            os.write(write_fd, b"x")

    here = threading.get_ident()

    def begin() -> None:
        if threading.get_ident() == here:
            os.write(write_fd, b"x")
        else:
            engine.call_later(0.001, begin)  # this thread does not wait yet

    engine.call_soon(lambda: engine.watch(read_fd, on_ready))
    engine.call_soon(begin)
    assert signal.wait(_PATIENCE_S)
    assert seen[-1] == threading.get_ident()
    engine.unwatch(read_fd)
    os.close(read_fd)
    os.close(write_fd)


def test_what_came_while_the_process_stood_still_goes_before_timers_that_are_late(engine: Engine) -> None:
    read_fd, write_fd = os.pipe()
    order: list[str] = []
    both = Flag(engine)

    def note(what: str) -> None:
        order.append(what)
        if len(order) == 2:
            both.set()

    def on_ready(_mask: int) -> None:
        os.read(read_fd, 1)
        note("came")

    def stand_still() -> None:
        engine.watch(read_fd, on_ready)
        engine.call_later(0.01, lambda: note("timer"))
        os.write(write_fd, b"x")
        end_s = engine.clock() + 0.15
        while engine.clock() < end_s:
            pass

    engine.call_soon(stand_still)
    assert both.wait(_PATIENCE_S)
    assert order == ["came", "timer"]
    engine.unwatch(read_fd)
    os.close(read_fd)
    os.close(write_fd)


def test_callbacks_run_when_nobody_waits(engine: Engine) -> None:
    done = threading.Event()
    engine.call_soon(done.set)
    assert done.wait(_PATIENCE_S)
    later = threading.Event()
    engine.call_later(0.01, later.set)
    assert later.wait(_PATIENCE_S)


def test_timers_run_in_order_and_cancelled_ones_do_not(engine: Engine) -> None:
    ran: list[str] = []
    signal = Flag(engine)
    engine.call_later(0.02, lambda: ran.append("second"))
    engine.call_later(0.01, lambda: ran.append("first"))
    engine.call_later(0.015, lambda: ran.append("never")).cancel()
    engine.call_later(0.03, signal.set)
    assert signal.wait(_PATIENCE_S)
    assert ran == ["first", "second"]


def test_a_wait_ends_at_its_time_and_can_be_repeated(engine: Engine) -> None:
    signal = Flag(engine)
    assert not signal.wait(0.01)
    signal.set()
    assert signal.wait(0.0)


def test_a_signal_from_another_thread_wakes_every_waiter(engine: Engine) -> None:
    signals = [Flag(engine) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(signal.wait, _PATIENCE_S) for signal in signals]
        for signal in reversed(signals):
            signal.set()
        assert all(wait.result(_PATIENCE_S) for wait in waits)


def test_many_threads_hand_the_driving_on_without_losing_a_wake_up(engine: Engine) -> None:
    """Each thread waits for its own future, completed by another one: any lost wake-up hangs the chain."""
    num_threads, num_rounds = 6, 300
    futures = [[Future[int](engine) for _ in range(num_rounds)] for _ in range(num_threads)]

    def follow(number: int) -> int:
        total = 0
        for turn in range(num_rounds):
            futures[(number + 1) % num_threads][turn].set_result(turn)
            total += futures[number][turn].get(_PATIENCE_S)
        return total

    with ThreadPoolExecutor(num_threads) as pool:
        totals = list(pool.map(follow, range(num_threads)))
    assert totals == [num_rounds * (num_rounds - 1) // 2] * num_threads


def test_a_broken_callback_stops_nothing(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    signal = Flag(engine)
    engine.call_soon(lambda: [][0])
    engine.call_soon(signal.set)
    assert signal.wait(_PATIENCE_S)
    assert "a callback of the I/O engine failed" in caplog.text


def test_a_callback_may_be_told_of_elsewhere(engine: Engine) -> None:
    told: list[tuple[str, BaseException]] = []
    engine.on_fault = lambda what, error: told.append((what, error))
    engine.call_soon(lambda: [][0])
    wait_until("the fault", lambda: told)
    (what, error), *_ = told
    assert (what, type(error)) == ("a callback of the I/O engine failed", IndexError)


@pytest.mark.parametrize("waits", [False, True])
def test_without_its_descriptor_it_fails_and_all_waits_say_so(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    first: Future[int] = Future(engine)
    engine.start()
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(first.get, _PATIENCE_S)] if waits else []
        wait_until("the driver", lambda: engine.driver)
        with open(os.devnull, "rb") as null:  # in its place, or the engine's end would close what gets the number next
            os.dup2(null.fileno(), engine._epoll.fileno())
        engine.call_soon(lambda: None)
        wait_until("the failure", lambda: engine.failure)
        for read in (*reads, pool.submit(first.get, _PATIENCE_S)):
            with pytest.raises(EngineFailed, match="Invalid argument") as raised:
                read.result(_PATIENCE_S)
            assert isinstance(raised.value.__cause__, OSError)
    engine._background.join()  # it logs the failure after those who wait have been woken
    assert engine.closed
    assert "the I/O engine of this process has failed" in caplog.text
    engine._wakeup.close()
    engine._epoll.close()


def test_a_failure_ends_the_wait_of_the_thread_that_drives() -> None:
    """Of another thread, such as the background one, while this one polls."""
    engine = Engine()
    engine.call_soon(lambda: engine.fail(RecursionError("no frames left")))
    with pytest.raises(EngineFailed, match="no frames left"):
        engine.wait(lambda: False, _PATIENCE_S)
    engine._wakeup.close()
    engine._epoll.close()


def test_what_fails_in_passing_is_tried_again() -> None:
    engine = Engine()
    signal = Flag(engine)
    engine.call_later(0.0, signal.set)  # so that the background thread reads the clock
    real, left = engine.clock, 3

    def clock() -> float:
        nonlocal left
        left -= 1
        if left >= 0:
            raise MemoryError
        return real()

    engine.clock = clock
    engine.start()
    wait_until("the background thread", signal.is_set)
    assert engine.failure is None
    engine.close()


def test_a_descriptor_that_other_code_has_closed_can_be_let_go(engine: Engine) -> None:
    read, write = os.pipe()
    done = Flag(engine)

    def let_go() -> None:
        engine.watch(read, lambda _mask: None)
        os.close(read)
        engine.unwatch(read)
        done.set()

    engine.call_soon(let_go)
    assert done.wait(_PATIENCE_S)
    os.close(write)


def test_a_condition_that_raises_does_so_in_the_thread_that_waits_for_it(engine: Engine) -> None:
    broken = False

    def ready() -> bool:
        if broken:
            raise ValueError("broken")
        return False

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(engine.wait, ready, _PATIENCE_S)
        wait_until("the waiter", lambda: engine._waiters)
        broken = True
        engine.wake_waiters()
        assert isinstance(waits.exception(_PATIENCE_S), ValueError)


def test_an_idle_engine_uses_no_cpu(engine: Engine) -> None:
    signal = Flag(engine)
    # Of the two threads that may drive it: what earlier tests left in this process may be at work too.
    clocks = [time.pthread_getcpuclockid(ident) for ident in (threading.get_ident(), engine._background.ident)]
    engine.call_later(1.0, signal.set)
    before_s = sum(map(time.clock_gettime, clocks))
    assert signal.wait(_PATIENCE_S)
    assert sum(map(time.clock_gettime, clocks)) - before_s < 0.1


def test_cancelled_timers_are_not_kept_until_their_time(engine: Engine) -> None:
    asked = Flag(engine)

    def cancel_many() -> None:
        for _ in range(10_000):
            engine.call_later(600.0, lambda: None).cancel()
        asked.set()

    engine.call_soon(cancel_many)
    assert asked.wait(_PATIENCE_S)
    assert len(engine._timers) < 1000


def test_closing_wakes_those_who_wait() -> None:
    engine = Engine()
    engine.start()
    future: Future[int] = Future(engine)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(future.get)
        engine.call_later(0.01, lambda: None)
        engine.close()
        with pytest.raises(RuntimeError, match="closed while a call was in flight"):
            waiting.result(_PATIENCE_S)


def test_a_waiter_that_is_ready_when_woken_to_drive_hands_the_driving_on(engine: Engine) -> None:
    """All waiters but one become ready at once; the last one's timer must still run."""
    for _ in range(150):
        early, late = [Flag(engine) for _ in range(4)], Flag(engine)
        with ThreadPoolExecutor(5) as pool:
            waits = [pool.submit(signal.wait, _PATIENCE_S) for signal in (*early, late)]

            def set_early(early: list[Flag] = early) -> None:
                for signal in early:
                    signal.set()

            engine.call_later(0.001, set_early)
            engine.call_later(0.004, late.set)
            assert all(wait.result(_PATIENCE_S) for wait in waits)


def test_what_the_end_of_a_turn_asks_for_runs_before_the_driver_asks_the_kernel(engine: Engine) -> None:
    read_fd, write_fd = os.pipe()
    over = Flag(engine)
    order: list[str] = []

    def first() -> None:
        order.append("first")
        os.write(write_fd, b"x")
        engine.at_end_of_turn(lambda: order.append("last"))

    def ready(_mask: int) -> None:
        order.append("kernel")
        engine.unwatch(read_fd)
        over.set()

    def begin() -> None:
        engine.watch(read_fd, ready)
        engine.at_end_of_turn(first)

    engine.call_soon(begin)
    assert over.wait(_PATIENCE_S)
    assert order == ["first", "last", "kernel"]
    os.close(read_fd)
    os.close(write_fd)


def test_a_program_on_a_host_spins_while_all_have_a_core() -> None:
    num_cores = len(os.sched_getaffinity(0))
    with controlled(load().config, 1) as hosts:
        engine = Controller.instance().engine
        with hosts.spawn_procs(per_host={"procs": num_cores - 1} if num_cores > 1 else None):
            wait_until("room", lambda: engine.spin_s, accept=lambda spin_s: bool(spin_s) == (num_cores > 1))
            with hosts.spawn_procs():
                wait_until("no room", lambda: engine.spin_s, accept=lambda spin_s: not spin_s)


@pytest.mark.parametrize("timeout_s", [1e7, 1e300, None])
def test_waits_and_timers_may_be_of_any_length(engine: Engine, timeout_s: float | None) -> None:
    """One call of the kernel takes 24 days at most."""
    signal = Flag(engine)
    engine.call_later(1e8, signal.set)
    other = threading.Timer(0.05, signal.set)  # by then this thread waits
    other.start()
    assert signal.wait(timeout_s)
    other.join()
