"""Host names resolve to the kind of address that is asked for."""

from __future__ import annotations

import pytest

from monarch_hpc.tools.network import AddrType, get_ipaddr, get_sockaddr


def test_addresses_of_a_kind() -> None:
    assert get_ipaddr("127.0.0.1", 80, AddrType.IPv4) == "127.0.0.1"
    assert get_ipaddr("::1", 80) == get_ipaddr("::1", 80, AddrType.IPv6) == "::1"
    assert get_sockaddr("127.0.0.1", 80) == "127.0.0.1:80"
    assert get_sockaddr("::1", 0) == "[::1]:0"


def test_what_has_no_such_address_is_refused() -> None:
    with pytest.raises(OSError, match=r"127\.0\.0\.1 has no IPv6 address"):
        get_ipaddr("127.0.0.1", 80, AddrType.IPv6)
    with pytest.raises(ValueError, match="port"):
        get_ipaddr("127.0.0.1", 65536)
    with pytest.raises(TypeError, match=r"AddrType\.IPv4"):
        get_ipaddr("127.0.0.1", 80, "IPv4")  # type: ignore[arg-type]
