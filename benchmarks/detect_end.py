"""The program that `benchmarks.detect` runs on the login host of a lab: a call to an actor on another host, to its end.

    python detect_end.py PEER ADDRESS

Prints `begun`, then `ended` and the time at which the call failed, of the monotonic clock, which all hosts of the lab
share. Runs in the peer's interpreter, and needs nothing else.
"""

from __future__ import annotations

import sys
import time
from typing import Any

_NAP_S = 3600


def ours(_address: str) -> None:
    """Call an actor on the last host of the allocation."""
    import monarch_hpc.actor
    from monarch_hpc import Actor, endpoint

    class Victim(Actor):
        @endpoint
        def nap(self, duration_s: float) -> None:
            time.sleep(duration_s)

    monarch_hpc.actor.unhandled_fault_hook = lambda _failure: None
    hosts = monarch_hpc.hosts()
    victim = hosts.slice(hosts=len(hosts) - 1).spawn_procs().spawn("victim", Victim)
    victim.nap.call_one(0).get()
    _await_end(victim.nap.call_one(_NAP_S).get)


def ray(address: str) -> None:
    """Call an actor that only the worker of the other host has the resource for."""
    import ray  # type: ignore[import-not-found,unused-ignore]

    ray.init(address=address, log_to_driver=False)

    class Victim:
        def nap(self, duration_s: float) -> None:
            time.sleep(duration_s)

    actor: Any = ray.remote(num_cpus=0, resources={"victim": 1}, max_restarts=0)(Victim)
    victim = actor.remote()
    ray.get(victim.nap.remote(0))
    pending = victim.nap.remote(_NAP_S)
    _await_end(lambda: ray.get(pending))


def torchmonarch(address: str) -> None:
    """Call an actor of a worker that listens on the other host."""
    import monarch.actor
    from monarch.actor import Actor, attach_to_workers, enable_transport, endpoint

    class Victim(Actor):
        @endpoint
        def nap(self, duration_s: float) -> None:
            time.sleep(duration_s)

    monarch.actor.unhandled_fault_hook = lambda _failure: None
    enable_transport("tcp")
    hosts = attach_to_workers(ca="trust_all_connections", workers=[address])
    victim: Any = hosts.spawn_procs(per_host={"p": 1}).spawn("victim", Victim)
    victim.nap.call(0).get()
    pending = victim.nap.call(_NAP_S)
    _await_end(pending.get)


def _await_end(wait: Any) -> None:
    print("begun", flush=True)
    try:
        wait()
    except Exception as error:  # noqa: BLE001 which one differs between the peers
        print("ended", time.monotonic(), type(error).__name__, flush=True)


if __name__ == "__main__":
    {"ours": ours, "ray": ray, "torchmonarch": torchmonarch}[sys.argv[1]](sys.argv[2])
