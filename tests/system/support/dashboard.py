"""A running `monarch-hpc dash`, and a client of it that is no browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.testing import wait_until
from tests.child import child

PATIENCE_S = 60.0


class Dashboard:
    """Attributes: document: what the command printed; process: the command."""

    def __init__(self, process: subprocess.Popen[str], document: dict[str, object]) -> None:
        self.process = process
        self.document = document
        self.url = str(document["url"])
        self.token = self.url.partition("#token=")[2]
        self.cookie = ""

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection as ssh makes it: to the port or the socket, for the host `localhost`."""
        if "port" in self.document:
            return http.client.HTTPConnection("127.0.0.1", int(str(self.document["port"])), timeout=PATIENCE_S)
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE_S)
        connection.sock.connect(str(self.document["socket"]))
        return connection

    def request(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send a request and return status, head and body of the answer."""
        connection = self.connect()
        with contextlib.closing(connection):
            fields = {"Cookie": self.cookie} if self.cookie else {}
            if body is not None:
                fields["Content-Type"] = "application/json"
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, target, data, {**fields, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def log_in(self) -> None:
        """Exchange the token for the cookie."""
        status, head, _ = self.request("POST", "/session", {"token": self.token})
        assert status == 200, status
        self.cookie = str(head["Set-Cookie"]).partition(";")[0]

    def events(self) -> Generator[tuple[str, dict[str, object]], None, None]:
        """Yield events as they come."""
        connection = self.connect()
        with contextlib.closing(connection):
            connection.request("GET", "/api/events", headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
            name = ""
            for line in answer:
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

    def picture(self) -> dict[str, object]:
        """Return the next picture."""
        with contextlib.closing(self.events()) as events:
            return next(document for name, document in events if name == "picture")


@contextlib.contextmanager
def opened(*options: str) -> Iterator[Dashboard]:
    """Start a dashboard of this program's allocation."""
    command = [sys.executable, "-m", "monarch_hpc.cli", "dash", os.environ[DIRECTORY_VARIABLE], "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with child(process):
        assert process.stdout is not None
        text = ""
        # The document is all that it prints; it goes on after that.
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        yield Dashboard(process, json.loads(text))
        process.terminate()
        wait_until("the dashboard ends", process.poll, PATIENCE_S, accept=lambda status: status is not None)
        assert process.returncode == 0
        socket_path = json.loads(text).get("socket")
        assert socket_path is None or not Path(socket_path).exists()
