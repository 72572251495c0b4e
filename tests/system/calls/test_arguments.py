"""Wrong arguments raise where they are passed: nothing is sent, and nothing else is affected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import monarch_hpc
from monarch_hpc import Accumulator, Actor, ActorMesh, Channel, Extent, HostMesh, ProcMesh, ValueMesh, endpoint
from monarch_hpc.actor import BootstrapCommand, as_endpoint, attach, default_bootstrap_cmd, enable_transport, send
from monarch_hpc.config.load import load
from monarch_hpc.job import LocalJob, ProcessJob, SlurmJob, exec_command, set_current_job, shell
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.spmd import setup_torch_elastic_env
from monarch_hpc.transport.channel import PeerChannel
from monarch_hpc.wire.control.runs import RunLinks
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.controlling import controlled, settle


class Probe(Actor):
    """Has endpoints that answer."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    @endpoint
    def add(self, number: int) -> int:
        return self.start + number

    def helper(self) -> None:
        """Not an endpoint."""


class Hiding(Actor):
    """Has an endpoint that a mesh cannot call."""

    @endpoint
    def slice(self) -> None:
        pass


@dataclass(frozen=True)
class World:
    """Targets of the calls; untyped, because the calls are wrong on purpose."""

    hosts: Any
    procs: Any
    probe: Any
    values: Any


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with controlled(load({"fabric.order": ["tcp"]}).config) as hosts, hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        probe = procs.spawn("probe", Probe)
        assert sorted(probe.add.call(1).get().values()) == [1] * 4
        settle(procs)
        yield World(hosts, procs, probe, probe.add.call(0).get())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    """Collect the messages that this process sends from now on, except heartbeats and its report of its channels.

    That follows a moment after they were opened, whatever the program does.
    """
    seen: list[Frame] = []
    through = PeerChannel.send

    def send_and_note(self: PeerChannel, frame: Frame, end_s: float | None = None) -> bool:
        is_report = frame.kind is Kind.CONTROL and isinstance(decode(frame.body), RunLinks)
        if frame.kind is not Kind.PING and not is_report:
            seen.append(frame)
        return through(self, frame, end_s)

    monkeypatch.setattr(PeerChannel, "send", send_and_note)
    return seen


Call = Callable[[World], object]
CALLS: list[tuple[str, Call, str]] = [
    # ---- procs ----
    (
        "per_host number",
        lambda w: w.hosts.spawn_procs(per_host=2),
        "per_host is 2, an int: give a mapping, {'gpus': 4}",
    ),
    ("per_host text", lambda w: w.hosts.spawn_procs(per_host={"gpus": "2"}), "per_host['gpus'] is '2', a str"),
    ("per_host float", lambda w: w.hosts.spawn_procs(per_host={"gpus": 2.0}), "per_host['gpus'] is 2.0, a float"),
    ("per_host flag", lambda w: w.hosts.spawn_procs(per_host={"gpus": True}), "per_host['gpus'] is True, a bool"),
    ("per_host zero", lambda w: w.hosts.spawn_procs(per_host={"gpus": 0}), "per_host['gpus'] is 0: give at least 1"),
    ("per_host many", lambda w: w.hosts.spawn_procs(per_host={"gpus": 10**9}), "give at most 16384 for one host"),
    ("per_host key", lambda w: w.hosts.spawn_procs(per_host={3: 1}), "a key of per_host is 3, an int"),
    ("per_host again", lambda w: w.hosts.spawn_procs(per_host={"hosts": 2}), "per_host has 'hosts', a dimension"),
    ("bootstrap", lambda w: w.hosts.spawn_procs(bootstrap=3), "bootstrap is 3, an int: give a function"),
    ("bootstrap of one", lambda w: w.hosts.spawn_procs(bootstrap=print_one), "bootstrap is called without arguments"),
    (
        "bootstrap lock",
        lambda w: w.hosts.spawn_procs(bootstrap=unpicklable()),
        "variable held, a TextIOWrapper, cannot be sent",
    ),
    ("name", lambda w: w.hosts.spawn_procs(name=3), "name is 3, an int: give a string"),
    (
        "env number",
        lambda w: w.hosts.spawn_procs(env={"OMP_NUM_THREADS": 1}),
        "env['OMP_NUM_THREADS'] is 1, an int: give a",
    ),
    ("env flag", lambda w: w.hosts.spawn_procs(env={"A": True}), "env['A'] is True, a bool: give a string, 'True', or"),
    ("env list", lambda w: w.hosts.spawn_procs(env=["A=1"]), "env is ['A=1'], a list: give a mapping"),
    ("env empty list", lambda w: w.hosts.spawn_procs(env=[]), "env is [], a list: give a mapping"),
    ("env name", lambda w: w.hosts.spawn_procs(env={"A=B": "1"}), "env['A=B']: a name of a variable"),
    ("preload number", lambda w: w.hosts.spawn_procs(preload=[3]), "preload[0] is 3, an int: give a string"),
    ("preload text", lambda w: w.hosts.spawn_procs(preload="math"), "preload is 'math', a str: give a list of strings"),
    ("mpi", lambda w: w.hosts.spawn_procs(mpi="yes"), "mpi is 'yes', a str: give True or False"),
    (
        "bind number",
        lambda w: w.hosts.spawn_procs(proc_bind=[{"cpus": 0}]),
        "proc_bind[0]['cpus'], a list such as '0-3,8'",
    ),
    (
        "bind mapping",
        lambda w: w.hosts.spawn_procs(proc_bind={"cpus": "0"}),
        "proc_bind is {'cpus': '0'}, a dict; it is",
    ),
    (
        "bind word",
        lambda w: w.hosts.spawn_procs(proc_bind="tight"),
        "proc_bind is 'tight'; it is 'auto', 'none' or a list",
    ),
    ("bind words", lambda w: w.hosts.spawn_procs(proc_bind=["0"]), "proc_bind[0] is '0', a str: give a mapping"),
    ("bind long", lambda w: w.hosts.spawn_procs(proc_bind=[{"cpus": "0-99999999999"}]), "is not a list of numbers"),
    ("command", lambda w: w.hosts.spawn_procs(bootstrap_command="python"), "give a BootstrapCommand"),
    (
        "command env",
        lambda w: w.hosts.spawn_procs(bootstrap_command=command({"A": 1})),
        "bootstrap_command.env['A'] is 1",
    ),
    ("with_env", lambda w: default_bootstrap_cmd().with_env({"A": 1}), "env['A'] is 1, an int"),  # type: ignore[dict-item]
    ("this_host", lambda w: monarch_hpc.this_host().spawn_procs(per_host=2), "per_host is 2"),  # type: ignore[arg-type]
    ("python", lambda w: w.hosts.with_python_executable(3), "python_executable is 3, an int: give a string or a path"),
    ("no python", lambda w: w.hosts.with_python_executable(""), "python_executable is '', a str: give a path"),
    ("reason", lambda w: w.hosts.stop(3), "reason is 3, an int: give a string"),
    ("procs' reason", lambda w: w.procs.stop(reason=None), "reason is None: give a string"),
    # ---- views ----
    ("slice unknown", lambda w: w.procs.slice(gpu=0), "no dimension 'gpu'; there are: hosts, gpus"),
    (
        "slice float",
        lambda w: w.procs.slice(gpus=1.0),
        "gpus is 1.0, a float: give a whole number, or slice(start, stop)",
    ),
    ("slice flag", lambda w: w.probe.slice(gpus=True), "gpus is True, a bool: give a whole number"),
    ("slice text", lambda w: w.probe.slice(gpus="0"), "gpus is '0', a str: give a whole number"),
    ("slice list", lambda w: w.probe.slice(gpus=[0, 1]), "gpus is [0, 1], a list: give a whole number, or slice("),
    ("slice outside", lambda w: w.hosts.slice(hosts=2), "hosts=2 is outside 0..1"),
    ("slice step", lambda w: w.procs.slice(gpus=slice(None, None, 0)), "the step must not be 0"),
    ("slice bounds", lambda w: w.procs.slice(gpus=slice(0.0, 1)), "the start of gpus is 0.0, a float"),
    ("slice empty", lambda w: w.procs.slice(gpus=slice(2, 2)), "keeps nothing of 2"),
    ("split unknown", lambda w: w.procs.split(gpu=("a", "b"), a=2), "no dimension 'gpu'; there are: hosts, gpus"),
    ("split text", lambda w: w.procs.split(gpus="ab"), "gpus is 'ab', a str: give a list of strings, the names"),
    ("split float", lambda w: w.procs.split(gpus=("a", "b"), a=2.0), "a is 2.0, a float: give a whole number"),
    ("split parts", lambda w: w.procs.split(gpus=("a", 3), a=2), "gpus[1] is 3, an int: give a string"),
    ("split none", lambda w: w.procs.split(gpus=()), "splitting gpus needs the names of its parts"),
    ("split odd", lambda w: w.procs.split(gpus=("x", "y"), x=3), "gpus has size 2, which 3 does not divide: x=3 x y=?"),
    ("split zero", lambda w: w.procs.split(gpus=("x", "y"), x=0), "x is 0: give at least 1"),
    ("flatten", lambda w: w.procs.flatten(3), "name is 3, an int: give a string"),
    ("flatten empty", lambda w: w.values.flatten(""), "the name of a dimension is empty"),
    ("rename number", lambda w: w.procs.rename(gpus=1), "gpus is 1, an int: give a string"),
    ("rename unknown", lambda w: w.procs.rename(gpu="tp"), "no dimension 'gpu'; there are: hosts, gpus"),
    ("size", lambda w: w.procs.size("gpu"), "no dimension 'gpu'; there are: hosts, gpus"),
    ("size number", lambda w: w.procs.size(1), "dim is 1, an int: give a list of strings"),
    ("item", lambda w: w.values.item(hosts=0), "2 values are left ({gpus: 2}); name every dimension"),
    ("item float", lambda w: w.values.item(hosts=0.0, gpus=0), "hosts is 0.0, a float: give a whole number"),
    ("extent", lambda w: Extent("hosts", (5,)), "labels is 'hosts', a str: give a list of strings"),
    ("extent size", lambda w: Extent(("hosts",), 5), "sizes is 5, an int: give a list"),  # type: ignore[arg-type]
    ("extent label", lambda w: w.procs.extent["gpu"], "no dimension 'gpu'; there are: hosts, gpus"),
    ("point", lambda w: w.procs.extent.point(1.5), "rank is 1.5, a float: give a whole number"),
    # ---- actors ----
    ("spawn swapped", lambda w: w.procs.spawn(Probe, "probe"), "name, the first argument of spawn, is <class"),
    ("spawn empty", lambda w: w.procs.spawn("", Probe), "name, the first argument of spawn, is empty"),
    ("spawn object", lambda w: w.procs.spawn("a", Probe()), "spawn takes a subclass of Actor, then its constructor's"),
    ("spawn class", lambda w: w.procs.spawn("a", dict), "spawn takes a subclass of Actor"),
    ("spawn arguments", lambda w: w.procs.spawn("a", Probe, 1, 2), "too many positional arguments"),
    ("spawn hidden", lambda w: w.procs.spawn("a", Hiding), "a mesh of actors has slice itself"),
    ("spawn lock", lambda w: w.procs.spawn("a", Probe, unpicklable()), "argument 0"),
    ("controller", lambda w: monarch_hpc.get_or_spawn_controller(3, Probe), "is 3, an int"),  # type: ignore[arg-type]
    ("controller class", lambda w: monarch_hpc.get_or_spawn_controller("a", 3), "a subclass of"),  # type: ignore[arg-type]
    ("call bare", lambda w: w.probe.add(1), "probe.add is an endpoint: write probe.add.call(...) for all actors"),
    ("call arguments", lambda w: w.probe.add.call("a", "b"), "too many positional arguments"),
    ("call one", lambda w: w.probe.add.call_one(1), "call_one needs a mesh of one actor"),
    ("choose", lambda w: w.probe.add.choose(), "missing a required argument: 'number'"),
    ("stream", lambda w: w.probe.add.stream(numbers=1), "missing a required argument: 'number'"),
    ("broadcast", lambda w: w.probe.add.broadcast(), "missing a required argument: 'number'"),
    ("no endpoint", lambda w: w.probe.sub, "probe has no endpoint 'sub'; it has: add"),
    ("unmarked", lambda w: w.probe.helper(), "helper of probe is not an endpoint: mark it with @endpoint"),
    ("as_endpoint", lambda w: as_endpoint(3), "as_endpoint takes a method of an actor mesh"),
    ("timeout text", lambda w: w.probe.add.options(timeout="3"), "timeout is '3', a str: give a number of seconds"),
    ("timeout zero", lambda w: w.probe.add.options(timeout=0), "timeout is 0 s: give more than 0"),
    ("timeout negative", lambda w: w.probe.add.options(timeout=-1), "timeout is -1 s: give more than 0"),
    ("timeout nan", lambda w: w.probe.add.options(timeout=float("nan")), "timeout is nan s: give more than 0"),
    (
        "timeout inf",
        lambda w: w.probe.add.options(timeout=float("inf")),
        "timeout is inf s: give more than 0, and at most",
    ),
    ("on_error", lambda w: w.probe.add.options(on_error="ignore"), "on_error is 'ignore'; it is 'raise' or"),
    ("accumulator", lambda w: Accumulator(w.probe, 0, max), "endpoint is <ActorMesh probe"),
    ("combine", lambda w: Accumulator(w.probe.add, 0, 1), "combine is 1, an int: give a function"),  # type: ignore[arg-type]
    ("merge", lambda w: Accumulator(w.probe.add, 0, max, "max"), "merge is 'max', a str"),  # type: ignore[arg-type]
    (
        "collects",
        lambda w: Accumulator(w.probe.add.options(on_error="collect"), 0, max),
        "call collect() of the Accumulator",
    ),
    ("endpoint timeout", lambda w: endpoint(timeout="3")(print_one), "the timeout of endpoint print_one is '3'"),  # type: ignore
    ("endpoint flag", lambda w: endpoint(concurrent="no")(print_one), "concurrent is 'no', a str"),  # type: ignore
    ("endpoint of", lambda w: endpoint("name"), "@endpoint marks methods; got 'name'"),  # type: ignore
    ("progress", lambda w: monarch_hpc.progress(3), "answers is 3, an int: give the answers to a call, mesh."),  # type: ignore[arg-type]
    # ---- ports ----
    ("capacity", lambda w: Channel.open(capacity="x"), "capacity is 'x', a str: give a whole number"),  # type: ignore
    ("capacity zero", lambda w: Channel.open(capacity=0), "capacity is 0: give at least 1"),
    ("once", lambda w: Channel.open(once=1), "once is 1, an int: give True or False"),  # type: ignore
    ("exception", lambda w: port().exception("no"), "error is 'no', a str: give an exception"),
    ("send endpoint", lambda w: send(w.probe, (1,), {}), "endpoint is <ActorMesh probe"),
    ("send args", lambda w: send(w.probe.add, 1, {}), "args is 1, an int: give a tuple"),  # type: ignore
    ("send kwargs", lambda w: send(w.probe.add, (1,), None), "kwargs is None: give a mapping"),  # type: ignore
    ("send port", lambda w: send(w.probe.add, (1,), {}, port=3), "port is 3, an int: give a port"),  # type: ignore
    ("selection", lambda w: send(w.probe.add, (1,), {}, selection="some"), "selection is 'some'; it is 'all'"),  # type: ignore
    # ---- scripts and torch ----
    ("script procs", lambda w: monarch_hpc.run_script(w.hosts, "a.py"), "procs is <HostMesh"),
    (
        "script args",
        lambda w: monarch_hpc.run_script(w.procs, "a.py", "--lr 3"),
        "args is '--lr 3', a str: give a list",
    ),
    ("script numbers", lambda w: monarch_hpc.run_script(w.procs, "a.py", ["--lr", 3]), "args[1] is 3, an int"),  # type: ignore
    ("script path", lambda w: monarch_hpc.run_script(w.procs, 3), "script is 3, an int: give a string or a path"),  # type: ignore
    ("spmd", lambda w: monarch_hpc.spmd(w.hosts), "procs is <HostMesh"),
    ("elastic", lambda w: setup_torch_elastic_env(w.hosts), "proc_mesh is <HostMesh"),
    ("port", lambda w: setup_torch_elastic_env(w.procs, "n1", 70000), "master_port is 70000: give at most 65535"),
    ("address", lambda w: setup_torch_elastic_env(w.procs, 3, 7), "master_addr is 3, an int"),  # type: ignore
    # ---- output ----
    ("level", lambda w: w.procs.logging_option(level=1.5), "level is 1.5, a float: give a whole number"),
    ("level name", lambda w: w.procs.logging_option(level="LOUD"), "level 'LOUD' is not known to logging"),
    ("window", lambda w: w.procs.logging_option(aggregate_window_sec="1"), "aggregate_window_sec is '1', a str"),
    ("streaming", lambda w: w.procs.logging_option(stream_to_client="no"), "stream_to_client is 'no', a str"),
    # ---- values that stay in their process ----
    (
        "a future",
        lambda w: w.probe.add.call([w.procs.initialized]),
        "a future stays in its process: send its result",
    ),
    (
        "a receiver",
        lambda w: w.probe.add.call(Channel[int].open()[1]),
        "argument 0, a PortReceiver, cannot be sent: TypeError: a receiver stays in the process that has opened",
    ),
    # ---- waiting ----
    ("get", lambda w: w.procs.initialized.get("3"), "timeout is '3', a str: give a number of seconds"),
    ("result", lambda w: w.procs.initialized.result(float("inf")), "timeout is inf s"),
    # ---- workers, transports and jobs ----
    (
        "workers",
        lambda w: monarch_hpc.attach_to_workers(workers="tcp://a:1"),
        "workers is 'tcp://a:1', a str: give a list",
    ),
    ("a worker", lambda w: monarch_hpc.attach_to_workers(workers=[3]), "workers[0] is 3, an int"),  # type: ignore
    ("key", lambda w: monarch_hpc.attach_to_workers(workers=["a"], private_key=3), "private_key is 3, an int"),  # type: ignore
    ("attach", lambda w: monarch_hpc.attach_to_workers(workers=["a"], timeout="3"), "timeout is '3', a str"),  # type: ignore
    ("loop", lambda w: monarch_hpc.run_worker_loop_forever(address=3), "address is 3, an int"),  # type: ignore
    ("transport", lambda w: enable_transport(3), "transport is 3, an int: give 'tcp'"),  # type: ignore
    ("outside", lambda w: attach(3), "addr is 3, an int: give a string"),  # type: ignore
    ("local job", lambda w: LocalJob("hosts"), "hosts is 'hosts', a str: give a list of strings"),
    ("process job", lambda w: ProcessJob({"a": "2"}), "meshes['a'] is '2', a str: give a whole number"),  # type: ignore
    ("process job none", lambda w: ProcessJob({}), "meshes is empty"),
    ("process job env", lambda w: ProcessJob({"a": 1}, env={"A": 1}), "env['A'] is 1, an int"),  # type: ignore
    ("slurm job", lambda w: SlurmJob({"a": 0}), "meshes['a'] is 0: give at least 1"),
    (
        "slurm job args",
        lambda w: SlurmJob({"a": 1}, slurm_args="--mem=0"),
        "slurm_args is '--mem=0', a str: give a list",
    ),
    ("slurm job time", lambda w: SlurmJob({"a": 1}, time_limit=30), "time_limit is 30, an int"),  # type: ignore
    ("slurm job gpus", lambda w: SlurmJob({"a": 1}, gpus_per_node=2.0), "gpus_per_node is 2.0, a float"),  # type: ignore
    ("job file", lambda w: LocalJob().state(cached_path=3), "cached_path is 3, an int"),  # type: ignore
    ("job module", lambda w: set_current_job(3), "module_path is 3, an int"),  # type: ignore
    (
        "command text",
        lambda w: exec_command(w.hosts, "ls -l"),
        "cmd is 'ls -l', a str: give a list of strings, one for",
    ),
    ("command env", lambda w: exec_command(w.hosts, ["ls"], env={"A": 1}), "env['A'] is 1, an int"),  # type: ignore
    ("command procs", lambda w: exec_command(w.procs, ["ls"]), "host_mesh is <ProcMesh"),
    ("shell procs", lambda w: shell(w.procs), "host_mesh_singleton is <ProcMesh"),
]


def print_one(one: object) -> None:
    """Take an argument, although a bootstrap gets none."""


def unpicklable() -> Callable[[], None]:
    held = open("/dev/null")
    held.close()
    return lambda: held.close()


def command(env: Any) -> BootstrapCommand:
    usual = default_bootstrap_cmd()
    return BootstrapCommand(usual.program, usual.arg0, usual.args, env)


def port() -> Any:
    return Channel.open()[0]


@pytest.mark.parametrize(("call", "words"), [pytest.param(call, words, id=name) for name, call, words in CALLS])
def test_a_wrong_argument_is_an_error_here_and_sends_nothing(
    world: World, sent: list[Frame], call: Call, words: str
) -> None:
    with pytest.raises((TypeError, ValueError, LookupError, AttributeError)) as caught:
        call(world)
    assert words in str(caught.value)
    assert sent == []
    assert world.probe.slice(hosts=1, gpus=1).add.call_one(2).get() == 2
    assert Controller.instance().tenancies.all()[0].fleet.hosts_of(world.procs._mesh)  # and all its procs still run


def test_every_kind_of_mesh_was_asked(world: World) -> None:
    assert isinstance(world.hosts, HostMesh) and isinstance(world.procs, ProcMesh)
    assert isinstance(world.probe, ActorMesh) and isinstance(world.values, ValueMesh)


def test_what_is_nearly_wrong_is_taken(world: World, tmp_path: Path) -> None:
    with world.hosts.spawn_procs(per_host={}, env={"HERE": tmp_path, "GONE": None}, preload=("json",)) as procs:
        assert len(procs) == 2
    assert world.probe.add.call(1).get(1e8).item(hosts=0, gpus=0) == 1
    assert world.probe.add.options(timeout=1e8).call(1).get(1e8).item(hosts=0, gpus=0) == 1
    with Channel[int].open()[1] as silent, pytest.raises(TimeoutError):
        silent.recv().get(-1.0)
