"""Which ways are tried at once, after what has worked before."""

from __future__ import annotations

import pytest

from monarch_hpc.transport.connect.routes import RouteKind, Routes

N1, N2 = ["tcp://10.0.0.1:1", "tcp://192.168.0.1:1"], ["tcp://10.0.0.2:1"]


def test_at_first_only_the_direct_way() -> None:
    ways = Routes()
    assert not ways.indirect_at_once(N1)
    assert ways.relay_may_help


@pytest.mark.parametrize("way", [RouteKind.FORWARD, RouteKind.RELAY])
def test_what_led_around_to_a_host_is_tried_at_once_for_all_its_processes(way: RouteKind) -> None:
    ways = Routes()
    ways.worked(N2, RouteKind.DIRECT)
    ways.worked(N1, way)
    assert ways.indirect_at_once(["tcp://192.168.0.1:77"])
    assert not ways.indirect_at_once(N2)
    assert not ways.indirect_at_once(["tcp://10.0.0.3:1"])
    ways.worked(N1, RouteKind.DIRECT)  # the network has healed
    assert not ways.indirect_at_once(N1)


def test_where_only_ways_around_have_worked_a_host_that_is_not_known_is_no_exception() -> None:
    ways = Routes()
    ways.worked(N1, RouteKind.RELAY)
    assert ways.indirect_at_once(N2)
    ways.worked(N2, RouteKind.DIRECT)
    assert ways.indirect_at_once(N1)
    assert not ways.indirect_at_once(["tcp://10.0.0.3:1"])


def test_the_relay_leads_no_further_than_others_once_one_has_worked() -> None:
    ways = Routes()
    ways.worked(N1, RouteKind.RELAY)
    assert ways.relay_may_help
    ways.worked(N2, RouteKind.FORWARD)
    assert not ways.relay_may_help


def test_what_is_no_address_has_no_way() -> None:
    ways = Routes()
    ways.worked(["nowhere"], RouteKind.RELAY)
    assert ways.indirect_at_once(["nowhere"])
