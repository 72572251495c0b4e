from __future__ import annotations

import pytest

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.text.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("login", ["login"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1,3-4]", ["n1", "n3", "n4"]),
        ("n[007-010]", ["n007", "n008", "n009", "n010"]),
        ("n[8-10]", ["n8", "n9", "n10"]),
        ("n[98-101]", ["n98", "n99", "n100", "n101"]),
        ("n[1-2]-ib,gpu", ["n1-ib", "n2-ib", "gpu"]),
        ("r[1-2]-n[1-2]", ["r1-n1", "r1-n2", "r2-n1", "r2-n2"]),
        ("n2,n1,n2", ["n2", "n1", "n2"]),
        ("nid001023.hsn", ["nid001023.hsn"]),
    ],
)
def test_expand_gives_the_names_in_order(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3",
        "n1-3]",
        "n[]",
        "n[1-]",
        "n[3-1]",
        "n[a-c]",
        "n[[1]]",
        "n1,",
        ",n1",
        "n1,,n2",
        "n1 n2",
        "n1\n",
        "(null)",
        "None assigned",
        "$(id)",
        "-w",
        "n[1-99999999999999]",
        "[1-2]" * 50,
        "n[1-100000][1-100000]",
        "n[1-100001]",
        "n[1-60000],m[1-60000]",
    ],
)
def test_what_is_no_host_list_or_too_long_a_one_is_refused_at_once(text: str) -> None:
    with pytest.raises(ConfigError, match="host list"):
        expand(text)


def test_the_limit_is_the_callers() -> None:
    assert expand("n[1-4]", max_hosts=4) == ["n1", "n2", "n3", "n4"]
    with pytest.raises(ConfigError, match="more than 3 hosts"):
        expand("n[1-4]", max_hosts=3)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["n1"], "n1"),
        (["n1", "n2", "n4"], "n[1-2,4]"),
        (["n1", "n3"], "n[1,3]"),
        (["n9", "n10"], "n[9-10]"),
        (["n09", "n10", "n11"], "n[09-11]"),
        (["n9", "n010"], "n[9,010]"),
        (["a1", "b1", "b2", "login"], "a1,b[1-2],login"),
        (["n1-ib", "n2-ib"], "n[1-2]-ib"),
        (["n2", "n1"], "n[2,1]"),
    ],
)
def test_compress_folds_the_last_number(hosts: list[str], text: str) -> None:
    assert compress(hosts) == text


@pytest.mark.parametrize("host", ["", "a,b", "n[1]", "a b", "-w"])
def test_compress_refuses_what_is_no_host_name(host: str) -> None:
    with pytest.raises(ConfigError, match="not a host name"):
        compress(["n1", host])
