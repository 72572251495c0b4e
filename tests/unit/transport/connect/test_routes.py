"""Routes that are tried at once, after what has worked before."""

from __future__ import annotations

import pytest

from monarch_hpc.transport.connect.routes import RouteKind, Routes

N1, N2 = ["tcp://10.0.0.1:1", "tcp://192.168.0.1:1"], ["tcp://10.0.0.2:1"]


def test_at_first_only_the_direct_way() -> None:
    routes = Routes()
    assert not routes.indirect_at_once(N1)
    assert routes.relay_may_help


@pytest.mark.parametrize("way", [RouteKind.FORWARD, RouteKind.RELAY])
def test_what_led_around_to_a_host_is_tried_at_once_for_all_its_processes(way: RouteKind) -> None:
    routes = Routes()
    routes.worked(N2, RouteKind.DIRECT)
    routes.worked(N1, way)
    assert routes.indirect_at_once(["tcp://192.168.0.1:77"])
    assert not routes.indirect_at_once(N2)
    assert not routes.indirect_at_once(["tcp://10.0.0.3:1"])
    routes.worked(N1, RouteKind.DIRECT)  # the network has healed
    assert not routes.indirect_at_once(N1)


def test_where_only_ways_around_have_worked_a_host_that_is_not_known_is_no_exception() -> None:
    routes = Routes()
    routes.worked(N1, RouteKind.RELAY)
    assert routes.indirect_at_once(N2)
    routes.worked(N2, RouteKind.DIRECT)
    assert routes.indirect_at_once(N1)
    assert not routes.indirect_at_once(["tcp://10.0.0.3:1"])


def test_the_relay_leads_no_further_than_others_once_one_has_worked() -> None:
    routes = Routes()
    routes.worked(N1, RouteKind.RELAY)
    assert routes.relay_may_help
    routes.worked(N2, RouteKind.FORWARD)
    assert not routes.relay_may_help


def test_what_is_no_address_has_no_way() -> None:
    routes = Routes()
    routes.worked(["nowhere"], RouteKind.RELAY)
    assert routes.indirect_at_once(["nowhere"])
