"""Telemetry of jobs, as programs for Monarch ask for it: questions, and a dashboard that ends with its program."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from tests.system.support.programs import PATIENCE_S, Programs, programs

__all__ = ["programs"]

HEAD = """
import http.client, json, os, sys, threading, time
from urllib.parse import urlsplit
from monarch_hpc.actor import Actor, endpoint
from monarch_hpc.job import LocalJob, ProcessJob, TelemetryConfig, job_load

class Trainer(Actor):
    @endpoint
    def step(self): return 1

def ask(url, method, target, **fields):
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=300)
    connection.request(method, target, headers=fields)
    return connection.getresponse()

def token_of(url): return urlsplit(url).fragment.partition("token=")[2]
"""

QUESTIONS = (
    HEAD
    + """
job = ProcessJob({"trainers": 2}).enable_telemetry(retention_secs=600)
state = job.state()
state.trainers.spawn_procs().spawn("trainer", Trainer).step.call().get()
calls = "FROM handled WHERE endpoint = 'step' GROUP BY host ORDER BY host"
answer = state.query_engine_client.query("SELECT host, count(*) AS calls " + calls)
print("rows", answer["rows"], answer["missing_hosts"])
other = ProcessJob({"readers": 1}).enable_telemetry(TelemetryConfig()).state(cached_path=None)
print("other calls", other.query_engine_client.query("SELECT host " + calls, timeout=60)["rows"], other.dashboard_url)
plain = LocalJob().state(cached_path=None)
print("none", plain.query_engine_client, plain.dashboard_url, state.dashboard_url, state.admin_url)
client = state.query_engine_client
for wrong in ("SELECT nothing FROM handled", "DROP TABLE handled", ""):
    try:
        client.query(wrong)
    except Exception as error:
        print("refused", type(error).__name__)
"""
)

NEXT = (
    HEAD
    + """
job = job_load()
client = job.state().query_engine_client
print("next", len(client.query("SELECT host FROM hosts")["rows"]))
job.kill()
try:
    client.query("SELECT 1")
except Exception as error:
    print("ended", type(error).__name__)
"""
)


def test_questions_about_the_hosts_of_a_job(programs: Programs) -> None:
    pytest.importorskip("datafusion")
    output = programs.run(QUESTIONS)
    assert "rows [{'host': 'local0', 'calls': 1}, {'host': 'local1', 'calls': 1}] []" in output
    assert "other calls [] None" in output and "none None None None None" in output
    assert [line for line in output.splitlines() if line.startswith("refused")] == [
        *["refused QueryError"] * 2,
        "refused ValueError",
    ]
    output = programs.run(NEXT)
    assert "next 2" in output and "ended AllocationError" in output
    programs.until_left()


DASHBOARD = (
    HEAD
    + """
job = LocalJob().enable_telemetry(include_dashboard=True, dashboard_port=int(sys.argv[1]))
state = job.state()
state.hosts.spawn_procs().spawn("trainer", Trainer).step.call().get()
url = state.dashboard_url
print("port", urlsplit(url).port, state.dashboard_url == url, job.state().dashboard_url == url)
print("page", ask(url, "GET", "/").status, ask(url, "GET", "/metrics").status)
answer = ask(url, "GET", "/metrics", Authorization=f"Bearer {token_of(url)}")
text = answer.read().decode()
print("metrics", answer.status, 'actor="trainer",endpoint="step"} 1' in text, "monarch_hpc_up" in text)
child = os.fork()
if child == 0:  # holds copies of all that is open
    os.close(1), os.close(2)
    time.sleep(600)
print("child", child, "started")
if len(sys.argv) > 2:
    time.sleep(600)
"""
)


def dashboards(programs: Programs) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if programs.mark in (path / "environ").read_bytes() and b"\0dash\0" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_a_dashboard_ends_with_its_program_also_if_a_fork_lives_on(programs: Programs, killed: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = programs.start(DASHBOARD, str(port), *(["stay"] if killed else []))
        output = programs.until(process, "started")
    child = int(next(line for line in output.splitlines() if line.startswith("child")).split()[1])
    try:
        found = next(line for line in output.splitlines() if line.startswith("port")).split()
        assert int(found[1]) not in (0, port) and found[2:] == ["True", "True"]  # the preferred one was in use
        assert "page 200 401" in output and "metrics 200 True True" in output
        if killed:
            assert len(dashboards(programs)) == 1
            process.kill()
        process.wait(PATIENCE_S)
        wait_until("the end of the dashboard", lambda: dashboards(programs), PATIENCE_S, accept=lambda left: not left)
        os.kill(child, 0)  # the fork lives
    finally:
        os.kill(child, signal.SIGKILL)
