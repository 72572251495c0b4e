"""Failed operations: their lines, their exceptions, and how long they are kept."""

from __future__ import annotations

import pickle
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

from monarch_hpc.core.errors import DeviceMeshError, RemoteOpError
from monarch_hpc.core.errors.tensor import RemoteOpError as Defined
from monarch_hpc.tensor.stream.failures import FailedOp, Failures
from monarch_hpc.tensor.stream.holdings import WorkerPlace
from monarch_hpc.tensor.stream.sites import SiteLines, line_of, site_here
from monarch_hpc.tensor.worker.collectives.sockets import cut_connections, listening_ports
from monarch_hpc.tensor.worker.divergence import FailedFrame
from monarch_hpc.tensor.worker.report import pack_failure, unpack_exception
from monarch_hpc.tensor.worker.sharing.local import add_worker, end_worker, forget_worker, wait_for_worker


class Awkward(Exception):
    """An exception that needs two arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def failed(seq: int, error: Exception) -> FailedOp:
    return FailedOp(1, site_here(1), pack_failure(seq, "torch:add", error))


def test_an_error_is_of_both_classes_and_names_the_line() -> None:
    for error in (ValueError("no"), KeyError("k"), Awkward("a", "b")):
        made = failed(3, error).error()
        assert isinstance(made, RemoteOpError) and isinstance(made, type(error))
        assert (made.rank, made.op, made.type_name.rpartition(".")[2]) == (1, "torch.add", type(error).__name__)
        assert "test_failures.py:" in str(made) and "pack_failure(seq" in str(made)
        copied = pickle.loads(pickle.dumps(made))
        assert isinstance(copied, Defined) and copied.message == made.message


def test_errors_are_kept_until_they_are_read_and_not_for_ever() -> None:
    failures = Failures(2)
    for seq in (1, 2, 3):
        failures.add(failed(seq, ValueError(str(seq))))
    assert failures.is_unread(2) and not failures.is_unread(1)
    assert "number 1" in str(failures.take(1))
    assert "ValueError: 3" in str(failures.take(3))
    assert not failures.is_unread(3)
    last = failures.take_unread()
    assert last is not None and "ValueError: 2" in str(last)
    assert failures.take_unread() is None


def test_what_cannot_be_pickled_is_described() -> None:
    class Local(Exception):
        def __reduce__(self) -> str:
            raise TypeError("never")

    report = pack_failure(1, "op", Local("text"))
    assert report[3] == "text" and unpack_exception(report[5])[1] is None
    cls, error = unpack_exception(pack_failure(1, "op", OSError(2, "x"))[5])
    assert cls is FileNotFoundError and isinstance(error, FileNotFoundError) and error.errno == 2
    assert unpack_exception(b"no pickle") == (None, None)


def test_a_line_is_found_outside_of_torch_and_this_package() -> None:
    line = line_of(site_here(1))  # here
    assert "test_failures.py:" in line and line.endswith("line = line_of(site_here(1))  # here")


def test_only_connections_of_these_ports_are_cut() -> None:
    before = listening_ports()
    with socket.create_server(("127.0.0.1", 0)) as mine, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [one.getsockname()[1] for one in (mine, other)]
        assert listening_ports() - before == set(ports)
        pairs = []
        for server in (mine, other):
            dialled = socket.create_connection(server.getsockname())
            pairs.append((dialled, server.accept()[0]))
        assert cut_connections({ports[0]}) == 2
        assert pairs[0][0].recv(1) == b"" and pairs[0][1].recv(1) == b""
        pairs[1][0].sendall(b"x")
        assert pairs[1][1].recv(1) == b"x"
        for pair in pairs:
            for one in pair:
                one.close()


def test_a_worker_is_found_by_its_key() -> None:
    class State:
        def abort(self, cause: str, epoch: int) -> None: ...

        def borrowed(self, token: int) -> object: ...

        def loaned(self, token: int) -> object: ...

        def note_failed(self, frame: FailedFrame) -> None: ...

        def place(self) -> WorkerPlace:
            return WorkerPlace(-1, "")

    state = State()
    with ThreadPoolExecutor() as pool:
        early = pool.submit(wait_for_worker, 5, 60, "it")  # before it is there
        add_worker(5, state)
        assert early.result(60) is state
    assert wait_for_worker(5, 60, "it") is state
    forget_worker(5)
    forget_worker(5)
    with pytest.raises(RuntimeError, match="procs are stopped"):
        wait_for_worker(5, 60, "it")


def test_a_worker_that_never_comes_is_not_waited_for() -> None:
    with ThreadPoolExecutor() as pool:
        early = pool.submit(wait_for_worker, 6, 60, "it")
        end_worker(6, "rank 1 died", 0)
        with pytest.raises(RuntimeError, match="has ended: rank 1 died"):
            early.result(60)


def test_a_stream_that_nobody_opened_is_not_waited_for_without_end() -> None:
    with pytest.raises(RuntimeError, match=r"^a stream \(number 0x2a\) did not start in this process within 0 s$"):
        wait_for_worker(0x2A, 0.0, "a stream")


def test_a_lost_mesh_says_what_to_do() -> None:
    text = str(DeviceMeshError("procs1", "died", 1, "signal 9"))
    assert "rank 1 died: signal 9" in text and "checkpoint" in text


def test_ranks_are_told_each_line_once() -> None:
    lines = SiteLines()
    first = site_here(1)
    second = site_here(1)
    base, told, numbers = lines.of([first, second, first], (0, 1))
    assert base == 0 and told == (line_of(first), line_of(second))
    assert memoryview(numbers).cast("H").tolist() == [1, 2, 1]
    assert lines.of([second], (0, 1)) == (2, (), b"\x02\x00")
    assert lines.of([second], (0,))[:2] == (0, told)  # others
