"""The HTTP server of the dashboard, on a Unix socket or on loopback."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import socketserver
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from monarch_hpc.cli.dash.access import FILES, PageAccess, route_of
from monarch_hpc.cli.dash.document import encode
from monarch_hpc.cli.dash.exposition import CONTENT_TYPE
from monarch_hpc.cli.dash.watch import Watch
from monarch_hpc.core.errors import ConfigError, QueryError

__all__ = ["PAGE", "DashServer", "open_loopback", "open_socket"]

PAGE = Path(__file__).parent / "page"

_MAX_BODY_BYTES = 64 << 10
"""A question in SQL, generously."""

_MAX_CONNECTIONS = 64
"""Each takes a thread; a browser opens six at most."""

_TIMEOUT_S = 30.0
_ALIVE_S = 10.0
"""Time between signs of life on a stream of events, by which proxies know that it is not idle."""

_PLACE = ("allocation", "run", "mesh", "rank", "host", "pid")

_HEAD = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class DashServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A server for a few people who look at a run. Connections beyond a limit are closed.

    Args:
        address: path of a Unix socket, or host and port.
    """

    daemon_threads = True
    block_on_close = False  # streams of events end with the watch
    request_queue_size = 32

    def __init__(self, address: str | tuple[str, int], access: PageAccess, watch: Watch) -> None:
        self.address_family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.allow_reuse_address = not isinstance(address, str)
        self.access = access
        self.watch = watch
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, _Handler)  # type: ignore[arg-type]  # typeshed knows no Unix sockets here

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, if there is room."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has gone."""


def open_socket(path: Path, access: PageAccess, watch: Watch) -> DashServer:
    """Serve on a Unix socket in a folder that only this user can enter.

    Raises:
        ConfigError: another dashboard uses it, others can enter its folder, or there is no such folder.
    """
    problem = _problem_of(path)
    if problem:
        raise ConfigError("", "", str(path), problem)
    path.unlink(missing_ok=True)
    try:
        server = DashServer(str(path), access, watch)
    except OSError as error:
        raise ConfigError("", "", str(path), f"cannot be a socket: {error.strerror or error}; try another") from error
    os.chmod(path, 0o600)
    return server


def _problem_of(path: Path) -> str:
    try:
        folder = os.stat(path.parent)
    except OSError as error:
        return f"its folder cannot be used: {error.strerror}; make one by 'mkdir -m 700'"
    if folder.st_uid != os.geteuid() or folder.st_mode & 0o077:
        return "others can enter its folder: choose one that is yours, of mode 0700"
    if not os.path.lexists(path):
        return ""
    if not path.is_socket():
        return "is a file already, and not a socket: choose another name"
    with socket.socket(socket.AF_UNIX) as tried, contextlib.suppress(OSError):
        tried.settimeout(_TIMEOUT_S)
        tried.connect(str(path))
        return "is in use by another program, maybe a dashboard: end it, or choose another name"
    return ""


def open_loopback(port: int, access: PageAccess, watch: Watch) -> DashServer:
    """Serve on a port of loopback; 0 for any that is free.

    Raises:
        ConfigError: the port cannot be used.
    """
    try:
        return DashServer(("127.0.0.1", port), access, watch)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError("", "", str(port), f"the port cannot be used: {why}; 0 chooses a free one") from error


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    server: DashServer
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S

    def version_string(self) -> str:
        return "monarch-hpc"

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: targets come from browsers."""

    def do_GET(self) -> None:
        """Check the request, and answer it; all methods come here."""
        # A body that is not read must not pass for the next request.
        with_body = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers
        self.close_connection = self.close_connection or with_body
        refusal = self.server.access.refusal_of(self.command, self.path, self.headers)
        if refusal is not None:
            self._drop_body()
            self._answer(refusal.status, encode({"error": refusal.problem}))
            return
        route = route_of(self.path)
        if route in FILES:
            name, kind = FILES[route]
            self._answer(200, (PAGE / name).read_bytes(), kind)
        elif route == "session":
            self._give_cookie()
        elif route == "api/events":
            self._stream()
        elif route == "api/query":
            self._query()
        elif route == "metrics":
            self._answer(200, self.server.watch.scraper.text(), CONTENT_TYPE)
        else:
            self._answer(200, encode({"text": self._text(route)}))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is not HTTP, without repeating any of it."""
        self.close_connection = True
        self._answer(code, encode({"error": HTTPStatus(code).phrase}))

    def _answer(self, status: int, body: bytes, kind: str = "application/json", cookie: str = "") -> None:
        self._begin(status, kind, cookie)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, status: int, kind: str, cookie: str = "") -> None:
        self.send_response(status)
        for name, value in {**_HEAD, "Content-Type": kind}.items():
            self.send_header(name, value)
        if cookie:
            self.send_header("Set-Cookie", cookie)

    def _body(self) -> bytes | None:
        """The request's body; None after an answer, if there is none that can be read."""
        length = self._body_bytes()
        if length is None:
            self._answer(413, encode({"error": f"a body has {_MAX_BODY_BYTES} bytes at most"}))
            return None
        return self.rfile.read(length)

    def _drop_body(self) -> None:
        """Read a short body: a client that is still sending it would find the connection closed, and no answer."""
        if length := self._body_bytes():
            self.rfile.read(length)

    def _body_bytes(self) -> int | None:
        """The length of the request's body; None if it is unknown, or too much."""
        length = self.headers.get("Content-Length", "")
        short = length.isdecimal() and len(length) <= 9 and int(length) <= _MAX_BODY_BYTES
        return int(length) if short else None

    def _give_cookie(self) -> None:
        body = self._body()
        if body is None:
            return
        if self.server.access.knows(body):
            self._answer(200, encode({}), cookie=self.server.access.cookie)
        else:
            problem = "the token is wrong: open the address that 'monarch-hpc dash' printed"
            self._answer(401, encode({"error": problem}))

    def _query(self) -> None:
        body = self._body()
        if body is None:
            return
        try:
            self._answer(200, encode(self.server.watch.query(json.loads(body))))
        except (ValueError, RecursionError):
            self._answer(400, encode({"error": "the body must be JSON"}))
        except QueryError as error:
            self._answer(400, encode({"error": str(error)}))

    def _text(self, route: str) -> str:
        fields = {name: some[0] for name, some in parse_qs(urlsplit(self.path).query).items()}
        if route == "api/stack":
            return self.server.watch.stack([fields.get(name, "") for name in _PLACE])
        return self.server.watch.logs(fields.get("allocation", ""), fields.get("run", ""), fields.get("rank", ""))

    def _stream(self) -> None:
        self.close_connection = True
        self._begin(200, "text/event-stream")
        self.send_header("X-Accel-Buffering", "no")  # nginx of a site would keep events back
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        for name, body in self.server.watch.events(_ALIVE_S):
            # JSON of one line, so that it cannot hold the end of an event.
            self.wfile.write(b"event: %s\ndata: %s\n\n" % (name.encode(), body) if name else b": alive\n\n")
            self.wfile.flush()
