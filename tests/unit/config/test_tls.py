from __future__ import annotations

import pytest

from monarch_hpc.config.tls import opens


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ("", False),
        ("self,posix,sysv,cma", False),
        ("sm,ib,cuda", False),
        ("tcpx,xtcp", False),
        ("all", True),
        ("posix,all", True),
        ("tcp", True),
        ("sm,tcp,self", True),
        ("sm, tcp", True),
        ("TCP", True),
        ("\\tcp", True),
        ("tcp:aux,rc", True),
        ("t*", True),
        ("?cp", True),
        ("^tcp", False),
        (" ^tcp", False),
        ("^ib,tcp", False),
        ("^", True),
        ("^all", True),
        ("^ib", True),
        # UCX 1.13 opens tcp with each of these.
        ("^TCP", True),
        ("^t*", True),
        ("^ tcp", True),
        ("^tcp:aux", True),
        ("^\\tcp", True),
    ],
)
def test_tcp(tls: str, expected: bool) -> None:
    assert opens(tls, "tcp") is expected


@pytest.mark.parametrize(
    ("tls", "transport", "expected"),
    [
        ("sm", "posix", True),
        ("shm", "cma", True),
        ("mm", "cma", False),
        ("cuda", "cuda_ipc", True),
        ("rc,tcp", "posix", False),
        ("rc,tcp", "rc_mlx5", True),
        ("ib", "dc_mlx5", True),
        ("^sm", "posix", False),
        ("^sm", "cuda_copy", True),
    ],
)
def test_aliases(tls: str, transport: str, expected: bool) -> None:
    assert opens(tls, transport) is expected
