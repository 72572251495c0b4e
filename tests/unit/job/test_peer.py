"""The user at the other end of a connection, found in the kernel's socket tables."""

from __future__ import annotations

from monarch_hpc.job.peer import find_owner, parse_owners

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 97421 1 0 100 0 0 10 0
   1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 97500 1 0 20 4 30 10 -1
   2: 0100007F:C351 0100007F:1F90 04 00000000:00000000 00:00000000 00000000     0        0 0 2 0 20 4 30 10 -1
   3: 0000000000000000FFFF00000100007F:C352 0000000000000000FFFF00000100007F:1F90 01 0:0 00:0 0  1003 0 97501 1
   4: 00000000000000000000000001000000:C353 00000000000000000000000001000000:1F90 01 0:0 00:0 0  1004 0 97502 1
   torn line
"""
OWNERS = parse_owners(TABLE.splitlines())
HERE = ("127.0.0.1", 8080)


def test_the_other_end_is_found_in_either_table() -> None:
    assert find_owner(HERE, ("127.0.0.1", 50000), OWNERS) == 1002
    assert find_owner(HERE, ("127.0.0.1", 50002), OWNERS) == 1003
    assert find_owner(("::1", 8080), ("::1", 50003), OWNERS) == 1004


def test_an_end_that_nobody_has_open_is_not_roots_and_one_that_is_not_there_is_nobodys() -> None:
    assert find_owner(HERE, ("127.0.0.1", 50001), OWNERS) == -1
    assert find_owner(HERE, ("127.0.0.1", 50009), OWNERS) == -1
    assert find_owner(("::1", 8080), ("::1", 9), OWNERS) == -1
    assert find_owner(("10.0.0.1", 8080), ("10.0.0.1", 9), OWNERS) == -1


def test_another_machine_has_no_user_here() -> None:
    assert find_owner(("10.0.0.1", 8080), ("10.0.0.2", 9), OWNERS) is None
    assert find_owner(("::ffff:10.0.0.1", 8080), ("::ffff:10.0.0.2", 9), OWNERS) is None
