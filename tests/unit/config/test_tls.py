from __future__ import annotations

import pytest

from monarch_hpc.config.tls import keep_private, leave_out_rdma, only_rdma, opens


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


@pytest.mark.parametrize(
    ("tls", "private"),
    [
        ("self,posix,cma", "self,posix,cma"),
        ("rc_x, tcp", "rc_x, tcp"),
        ("self,posix,sysv,cma", "self,posix,cma"),
        ("sysv", "self"),
        ("SYSV:aux,knem", "self"),
        ("sm,ib", "cma,posix,xpmem,ib"),
        ("mm", "posix,xpmem"),
        ("shm,posix", "cma,posix,xpmem"),
        ("\\sm", "cma,posix,xpmem"),
        ("s*,rc", "self,srd,rc"),
        ("all", "^sysv,knem"),
        ("tcp,all", "^sysv,knem"),
        (" ^tcp", "^tcp,sysv,knem"),
        ("^", "^sysv,knem"),
        ("^sysv", "^sysv,knem"),
        ("^sm,tcp", "^sm,tcp"),
        # UCX 1.13 compares excluded names exactly.
        ("^SYSV", "^SYSV,sysv,knem"),
        ("^s*", "^s*,sysv,knem"),
    ],
)
def test_memory_is_not_shared_with_others_whatever_is_asked_for(tls: str, private: str) -> None:
    assert keep_private(tls) == private
    assert not opens(private, "sysv") and not opens(private, "knem")


@pytest.mark.parametrize(
    ("tls", "rest", "rdma"),
    [
        ("self,posix,cma,ib", "self,posix,cma", "ib"),
        ("self,rc,tcp", "self,tcp", "rc"),
        ("rc_verbs, ud_verbs:aux", "self", "rc_verbs,ud_verbs:aux"),
        ("s*,posix", "self,posix", "s*"),
        ("all", "^rc_verbs,rc_mlx5,ud_verbs,ud_mlx5,dc_mlx5,srd", "ib"),
        ("^sysv,ud", "^sysv,ud,rc_verbs,rc_mlx5,dc_mlx5,srd", "rc_verbs,rc_mlx5,dc_mlx5,srd"),
        ("self,posix", "self,posix", ""),
    ],
)
def test_what_is_of_rdma_and_what_is_not(tls: str, rest: str, rdma: str) -> None:
    assert (leave_out_rdma(tls), only_rdma(tls)) == (rest, rdma)
    assert not opens(rest, "rc_verbs") and not opens(rdma, "tcp")
