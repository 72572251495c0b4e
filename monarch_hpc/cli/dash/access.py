"""Decides which requests to the dashboard are served. Pure: everything that counts is in the request's head."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from http.cookies import CookieError, SimpleCookie
from typing import Protocol
from urllib.parse import urlsplit

from monarch_hpc.core.dataclass import dataclass

__all__ = ["FILES", "ROUTES", "Headers", "PageAccess", "RequestRefused", "route_of"]

FILES: Mapping[str, tuple[str, str]] = {
    "": ("index.html", "text/html; charset=utf-8"),
    "dash.css": ("dash.css", "text/css; charset=utf-8"),
    "dash.js": ("dash.js", "text/javascript; charset=utf-8"),
    "charts.js": ("charts.js", "text/javascript; charset=utf-8"),
}
"""Files of the page by route. They hold nothing about any run, and so need no cookie: they fetch the cookie."""

ROUTES: Mapping[str, str] = {
    **dict.fromkeys(FILES, "GET"),
    "session": "POST",
    "api/events": "GET",
    "api/stack": "GET",
    "api/logs": "GET",
    "api/query": "POST",
    "metrics": "GET",
}
"""The method of each route."""

_LOCAL = ("localhost", "127.0.0.1", "::1")


class Headers(Protocol):
    """The fields of a request's head; names in any case."""

    def get_all(self, name: str) -> Sequence[str] | None:
        """Return all values of a field."""
        ...


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The answer to a request that is not served."""

    status: int
    problem: str


def route_of(target: str) -> str:
    """Return the route that a request's target names, with or without a proxy's prefix; `?` if it is none."""
    path = urlsplit(target).path
    if path.endswith("/"):
        return ""
    found = [route for route in ROUTES if route and path.endswith(f"/{route}")]
    return max(found, key=len, default="?")


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Admits requests that carry the token, from the dashboard's own page only.

    Args:
        token: a secret, which the page exchanges for a cookie.
        hosts: names, besides those of this machine for itself, by which browsers reach it through a proxy.
    """

    token: str = field(repr=False)
    hosts: Sequence[str] = ()

    @property
    def cookie_name(self) -> str:
        """Differs between dashboards: browsers send cookies to all ports of a host."""
        return f"monarch-dash-{self._digest('name')[:8]}"

    @property
    def cookie(self) -> str:
        """The field of the answer that sets the cookie. Without a path: it is for the folder that the page is in."""
        return f"{self.cookie_name}={self._digest('cookie')}; HttpOnly; SameSite=Strict"

    def _digest(self, use: str) -> str:
        # The cookie is not the token: who reads one later must not learn the other.
        return hmac.new(self.token.encode(), use.encode(), hashlib.sha256).hexdigest()

    def knows(self, body: bytes) -> bool:
        """Tell whether the body of a request for the cookie has the token."""
        try:
            given = json.loads(body)["token"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def refusal_of(self, method: str, target: str, headers: Headers) -> RequestRefused | None:
        """Return why a request is not served; None if it is. Bodies are checked by `knows` and by their readers."""
        checks: Sequence[Callable[[str, str, Headers], RequestRefused | None]] = (
            self._host,
            self._origin,
            self._route,
            self._holder,
        )
        return next((found for check in checks if (found := check(method, route_of(target), headers))), None)

    def _host(self, method: str, route: str, headers: Headers) -> RequestRefused | None:
        # Without this check, a page of anyone could name this machine by a name of its own and read the answers.
        given = headers.get_all("Host") or []
        name = _hostname(f"//{given[0]}") if len(given) == 1 else ""
        if name not in (*_LOCAL, *self.hosts):
            return RequestRefused(
                403, f"this is no dashboard of host {name or '?'}: start it with --allow-host for a proxy"
            )
        return None

    def _origin(self, method: str, route: str, headers: Headers) -> RequestRefused | None:
        host = (headers.get_all("Host") or [""])[0]
        for origin in headers.get_all("Origin") or []:
            same = origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())
            if not same and _hostname(origin) not in self.hosts:
                return RequestRefused(403, "the request comes from the page of another site: see --allow-host")
        if route not in FILES and "cross-site" in (headers.get_all("Sec-Fetch-Site") or []):
            return RequestRefused(403, "the request comes from the page of another site")
        return None

    def _route(self, method: str, route: str, headers: Headers) -> RequestRefused | None:
        if route not in ROUTES:
            return RequestRefused(404, "there is no such page")
        if method not in (ROUTES[route], "HEAD" if ROUTES[route] == "GET" else ""):
            return RequestRefused(405, f"only {ROUTES[route]} is possible here")
        # A form of another site cannot send this type.
        if method == "POST" and headers.get_all("Content-Type") != ["application/json"]:
            return RequestRefused(415, "the body must be JSON")
        return None

    def _holder(self, method: str, route: str, headers: Headers) -> RequestRefused | None:
        if route in FILES or route == "session":
            return None
        if route == "metrics" and (given := headers.get_all("Authorization")) is not None:
            # Collectors keep no cookies. Only here: what a collector may know is less than what the cookie's owner may.
            bearer = f"Bearer {self.token}".encode()
            if len(given) == 1 and hmac.compare_digest(given[0].encode(errors="replace"), bearer):
                return None
            return RequestRefused(
                401, "the token is wrong: send 'Authorization: Bearer' with that of 'monarch-hpc dash'"
            )
        cookies: SimpleCookie = SimpleCookie()
        for line in headers.get_all("Cookie") or []:
            try:
                cookies.load(line)
            except CookieError:
                continue
        given = cookies[self.cookie_name].value if self.cookie_name in cookies else ""
        if not hmac.compare_digest(given.encode(errors="replace"), self._digest("cookie").encode()):
            return RequestRefused(401, "the token is missing: open the address that 'monarch-hpc dash' printed")
        return None


def _hostname(address: str) -> str:
    """The host's name in an address, without port; empty if there is none."""
    try:
        found = urlsplit(address)
        return (found.hostname or "") if not found.username else ""
    except ValueError:
        return ""
