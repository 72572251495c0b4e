"""Commands that show a program leave it at any moment, and the next one goes on where they were."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import struct
import termios
import time
from pathlib import Path

import pytest

from monarch_hpc.core.machine.procfs import read_resident_bytes
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab.processes import read_command
from tests.system.support.agent_client import alive, cookie_holders
from tests.system.support.first_host import PATIENCE_S, allocation, call, detach, finish, line, runs, script, start

NUMBERS = "import sys, time\nfor number in range(int(sys.argv[1])):\n    print(number, flush=True); time.sleep(0.001)\n"


@pytest.mark.slow  # each client starts an interpreter
def test_no_line_is_left_out_whatever_clients_are_killed(home: Path) -> None:
    """What a client had shown, but not yet told of, when it was killed may be shown by the next one again."""
    random_s, parts = random.Random(5), list[bytes]()
    run = detach(home, script(home, NUMBERS), "4000")
    for _ in range(4):
        client = start(home, "attach", run)
        assert client.stdout is not None
        parts.append(os.read(client.stdout.fileno(), 1 << 16))  # not more than is returned: communicate() would miss it
        time.sleep(random_s.uniform(0, 0.2))  # how much it shows before it is killed must not matter
        client.kill()
        out, err = client.communicate(timeout=PATIENCE_S)
        assert err == b""
        parts[-1] += out
    code, rest, _ = call(home, "attach", run)
    whole, num_shown = "".join(f"{number}\n" for number in range(4000)).encode(), 0
    for part in [*parts, rest.encode()]:
        num_shown = max(at + len(part) for at in range(num_shown + 1) if whole.startswith(part, at))
    assert (code, num_shown) == (0, len(whole))
    # The whole of it is in the run's directory, also for a client that has seen nothing.
    assert call(home, "attach", "--all", run)[1].encode() == whole


def test_a_hangup_detaches_and_the_program_goes_on(home: Path) -> None:
    text = (
        "import os, time\nprint(os.getpid(), flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nprint('end')"
    )
    (home / "go").unlink(missing_ok=True)
    client = start(home, "run", "-a", "dev", "--on", "host0", script(home, text))
    pid = int(line(client))
    client.send_signal(signal.SIGHUP)
    code, _, err = finish(client)
    assert code == 129
    run = err.split()[1]
    assert alive(pid) and runs(home)[run] == pid
    (home / "go").touch()
    assert call(home, "attach", run)[:2] == (0, "end\n")
    assert run not in runs(home)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_client_that_detaches_lets_the_next_one_go_on_where_it_left_off(home: Path, number: signal.Signals) -> None:
    """Also where a full pipe holds up what it shows while the signal comes."""
    whole = "".join(f"{line}\n" for line in range(30_000))
    text = (
        "import os, time\nprint(*range(30_000), sep='\\n', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nprint('end')"
    )
    (home / "go").unlink(missing_ok=True)
    run = detach(home, script(home, text))
    client = start(home, "attach", run)
    assert client.stdout is not None
    pipe = client.stdout.fileno()
    full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    wait_until("much in the pipe", lambda: readable_bytes(pipe) > full // 2)  # not all: pages may be filled in part
    client.send_signal(number)
    _, shown, _ = finish(client)
    (home / "go").touch()
    assert len(shown) > full // 2
    assert call(home, "attach", run)[:2] == (0, whole[len(shown) :] + "end\n")


def readable_bytes(pipe: int) -> int:
    (num_bytes,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return int(num_bytes)


def test_ctrl_c_ends_a_foreground_run_and_detaches_an_attached_one(home: Path) -> None:
    text = "import time\ntry:\n print('armed', flush=True)\n time.sleep(600)\nexcept KeyboardInterrupt: print('caught')"
    run = detach(home, script(home, text))
    attached = start(home, "attach", run)
    assert line(attached) == "armed\n"
    attached.send_signal(signal.SIGINT)
    code, _, err = finish(attached)
    assert code == 0
    assert f"run {run} goes on: 'monarch-hpc attach {run}' shows it again, 'monarch-hpc cancel {run}' ends it" in err
    assert run in runs(home)
    # However long this test takes to read, and to send the second signal.
    attached = start(home, "attach", "--all", run, MONARCH_HPC_RUN__CANCEL_S="60")
    assert line(attached) == "armed\n"
    attached.send_signal(signal.SIGINT)
    assert attached.stderr is not None and b"goes on" in (said := attached.stderr.readline())
    assert b"; Ctrl-C within 60 s ends it" in said
    attached.send_signal(signal.SIGINT)
    assert finish(attached)[:2] == (0, "caught\n")
    assert run not in runs(home)
    foreground = start(home, "run", "-a", "dev", "--on", "host0", script(home, text))
    assert line(foreground) == "armed\n"
    foreground.send_signal(signal.SIGINT)
    code, out, err = finish(foreground)
    assert (code, out) == (0, "caught\n")
    assert "the run was stopped; allocation 'dev' is still there" in err


def test_a_closed_pipe_detaches(home: Path) -> None:
    # More than the pipe holds: it is still writing when the pipe is closed, however late that is.
    client = start(home, "run", "-a", "dev", "--on", "host0", script(home, NUMBERS), "1000000")
    assert line(client) == "0\n"
    assert client.stdout is not None
    client.stdout.close()
    assert client.wait(PATIENCE_S) == 141
    assert client.stderr is not None
    run = client.stderr.read().decode().split()[1]
    client.stderr.close()
    assert call(home, "cancel", run)[0] == 0


def test_a_client_that_does_not_read_costs_the_agent_no_memory_and_the_program_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_HPC_LOGS__MAX_FILE_BYTES", "1MiB")
    with allocation(tmp_path) as directory:
        agents = {pid for pid in cookie_holders(directory) if "monarch_hpc.agent" in read_command(pid)}
        seen = [0, 0, 0]

        def grown() -> int:
            seen.append(sum(map(read_resident_bytes, agents)))
            return seen[-1] - seen.pop(0)

        # What they load after their start is not meant.
        wait_until("agents that load nothing any more", grown, accept=lambda more: more < 1 << 20, interval_s=0.5)
        before = seen[-1]
        text = (
            "import os, time\nprint(f'{0:31}', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
            "for number in range(1, 1 << 20):\n    print(f'{number:31}')\nprint('last')\n"
        )
        client = start(tmp_path, "run", "-a", "dev", "--on", "host0", script(tmp_path, text))
        # It is connected, and does not read from here on.
        assert line(client).strip() == "0"
        (tmp_path / "go").touch()
        (folder,) = directory.glob("runs/*")
        wait_until("its end", (folder / "exit.json").exists, PATIENCE_S)
        assert sum(path.stat().st_size for path in folder.iterdir()) < 3 << 20
        assert sum(map(read_resident_bytes, agents)) - before < 16 << 20
        code, out, err = finish(client)
        assert code == 0
        lines = out.splitlines()
        assert lines[0].strip() == "1" and lines[-1] == "last"
        assert "bytes of output were discarded (config key 'logs.max_file_bytes')" in err
        lost = sum(int(word) for word in re.findall(r"\[monarch-hpc: (\d+) bytes of output were discarded", err))
        assert 32 + len(out) + lost == (32 << 20) + 5
