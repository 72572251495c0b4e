"""Requests to the dashboard that are served or refused: by host, origin, method, token and cookie."""

from __future__ import annotations

import json
from email.message import Message

import pytest

from monarch_hpc.cli.dash.access import FILES, ROUTES, PageAccess, route_of

TOKEN = "a-secret-token"
ACCESS = PageAccess(TOKEN, ["hub.example.org"])
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def head(*fields: tuple[str, str], host: str = "localhost:8384", cookie: bool = True) -> Message:
    found = Message()
    if host:
        found["Host"] = host
    if cookie:
        found["Cookie"] = ACCESS.cookie.partition(";")[0]
    for name, value in fields:
        found[name] = value
    return found


def status(method: str = "GET", target: str = "/api/events", headers: Message | None = None) -> int:
    refusal = ACCESS.refusal_of(method, target, head() if headers is None else headers)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["/", "/dash.js", "/session", "/api/events", "/api/query", "/nothing"])
def test_host_and_origin_count_for_all_methods_and_pages(method: str, target: str) -> None:
    json_type = ("Content-Type", "application/json")
    for host in ("evil.example", "localhost.evil.example", "", "localhost:80@evil.example", "[::1", "10.0.0.1:8384"):
        assert status(method, target, head(json_type, host=host)) == 403
    for origin in ("https://evil.example", "null", "http://localhost:9999", "http://localhost:8384.evil.example"):
        assert status(method, target, head(json_type, ("Origin", origin))) == 403
    two = head(json_type, ("Host", "evil.example"))
    assert status(method, target, two) == 403


@pytest.mark.parametrize("host", ["localhost:8384", "127.0.0.1", "[::1]:1", "hub.example.org", "LOCALHOST:8384"])
def test_hosts_that_are_served(host: str) -> None:
    assert status(headers=head(host=host)) == 200
    assert status(headers=head(("Origin", f"http://{host}"), host=host)) == 200
    assert status(headers=head(("Origin", f"https://{host}"), ("Sec-Fetch-Site", "same-origin"), host=host)) == 200


def test_a_proxy_that_changes_the_host_is_named() -> None:
    assert status(headers=head(("Origin", "https://hub.example.org"))) == 200
    assert PageAccess(TOKEN).refusal_of("GET", "/", head(("Origin", "https://hub.example.org"))) is not None


def test_pages_of_other_sites_cannot_ask_without_an_origin_either() -> None:
    assert status(headers=head(("Sec-Fetch-Site", "cross-site"))) == 403
    assert status(target="/", headers=head(("Sec-Fetch-Site", "cross-site"))) == 200  # a link to it


@pytest.mark.parametrize("method", METHODS)
def test_each_page_has_its_method(method: str) -> None:
    for route, wanted in ROUTES.items():
        allowed = method == wanted or (method == "HEAD" and wanted == "GET")
        assert status(method, f"/{route}", head(("Content-Type", "application/json"))) == (200 if allowed else 405)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_forms_of_other_sites_are_refused(kind: str) -> None:
    assert status("POST", "/session", head(("Content-Type", kind))) == 415
    assert status("POST", "/api/query", head()) == 415


@pytest.mark.parametrize("route", [route for route in ROUTES if route.startswith("api/")])
def test_what_a_run_does_needs_the_cookie(route: str) -> None:
    kind = ("Content-Type", "application/json")
    name = ACCESS.cookie_name
    assert status(ROUTES[route], f"/{route}", head(kind)) == 200
    assert status(ROUTES[route], f"/{route}", head(kind, cookie=False)) == 401
    for cookie in (f"{name}=", f"{name}={TOKEN}", f"{name}=\xe9", "other=1", f"x{ACCESS.cookie}", ";;;=;"):
        assert status(ROUTES[route], f"/{route}", head(kind, ("Cookie", cookie), cookie=False)) == 401
    # One of another dashboard on the same host stands beside ours.
    both = f"monarch-dash-00000000=1; {ACCESS.cookie.partition(';')[0]}"
    assert status(ROUTES[route], f"/{route}", head(kind, ("Cookie", both), cookie=False)) == 200


def test_a_collector_of_metrics_sends_the_token_itself() -> None:
    def given(*values: str, target: str = "/metrics") -> int:
        fields = [("Authorization", value) for value in values]
        return status("GET", target, head(*fields, cookie=False))

    assert given(f"Bearer {TOKEN}") == 200
    assert given() == 401 and status("GET", "/metrics") == 200  # a browser has the cookie
    for wrong in ("", TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN} ", f"Basic {TOKEN}", "Bearer \xe9", "Bearer "):
        assert given(wrong) == 401
    assert given(f"Bearer {TOKEN}", f"Bearer {TOKEN}") == 401
    assert status("GET", "/metrics", head(("Authorization", "Bearer wrong"))) == 401
    for target in ("/api/events", "/api/logs", "/api/stack"):
        assert given(f"Bearer {TOKEN}", target=target) == 401
    evil = head(("Authorization", f"Bearer {TOKEN}"), host="evil.example")
    assert status("GET", "/metrics", evil) == 403


def test_the_cookie_is_for_the_page_only_and_is_not_the_token() -> None:
    assert ACCESS.cookie.split("; ")[1:] == ["HttpOnly", "SameSite=Strict"]
    assert TOKEN not in ACCESS.cookie and TOKEN not in repr(ACCESS)
    assert PageAccess("another").cookie_name != ACCESS.cookie_name


def test_the_token() -> None:
    assert ACCESS.knows(json.dumps({"token": TOKEN}).encode())
    for body in (b"", b"{}", b"[]", b'"token"', b'{"token":null}', b'{"token":"a"}', b"\xff", b"[" * 100_000):
        assert not ACCESS.knows(body)


@pytest.mark.parametrize("prefix", ["", "/user/me/proxy/8384", "/node/login1/8384", "/rnode/login1/8384/api"])
def test_a_prefix_of_a_proxy_changes_nothing(prefix: str) -> None:
    for route in ROUTES:
        assert route_of(f"{prefix}/{route}") == route
        assert route_of(f"{prefix}/{route}?rank=1&host=/dash.js") == route
    for target in (f"{prefix}/api/../secret", f"{prefix}/etc/passwd", "*", "", "dash.js.map", "/index.html"):
        assert route_of(target) not in ROUTES
        assert status(target=target) == 404
    assert set(FILES) <= set(ROUTES)
