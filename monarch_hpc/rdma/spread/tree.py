"""The tree of a copy: from host to host by one receiver each, and from that one to the others of its host. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

__all__ = ["SOURCE", "choose_chunk", "choose_fan_out", "plan_parents"]

SOURCE = -1
"""The source, where a receiver's index would stand; as on the wire."""

_NEIGHBOURS = 8
"""Receivers of one host that pull from the same one: the tree of a host with hundreds of procs stays flat."""

_LAG_CHUNKS = 3
"""Distance of a host behind the one before it, in chunks: one under way, one asked for, and word of the next."""

_LEAST_CHUNK_BYTES = 256 << 10
_MOST_CHUNK_BYTES = 4 << 20
"""From where the way there and back costs little, to what delays other messages by a few milliseconds."""

_PAGE_BYTES = 4096


def choose_chunk(num_bytes: int, num_hosts: int) -> int:
    """Size of the chunks in bytes: the last of *num_hosts* shall be behind by a fraction of the whole."""
    wanted = num_bytes // (8 * _LAG_CHUNKS * max(num_hosts, 1))
    chunk = max(_LEAST_CHUNK_BYTES, min(wanted, _MOST_CHUNK_BYTES))
    return chunk // _PAGE_BYTES * _PAGE_BYTES


def choose_fan_out(num_chunks: int, num_hosts: int) -> int:
    """Number of hosts to which each passes the bytes on.

    One for much data, so that each host sends each byte once, and the time is that for one host. For few chunks and
    many hosts the way to the last one counts more.
    """

    def cost(fan_out: int) -> int:
        depth, reached, width = 0, 0, 1
        while reached < num_hosts:
            width *= fan_out
            reached += width
            depth += 1
        return fan_out * (num_chunks + _LAG_CHUNKS * max(depth - 1, 0))

    return min(range(1, max(min(num_hosts, _NEIGHBOURS), 1) + 1), key=cost)


def plan_parents(
    hosts: Mapping[int, str],
    source_host: str,
    order: Sequence[int],
    leaves: Collection[int] = (),
    fan_out: int = 1,
) -> dict[int, int]:
    """The parent of each receiver: another one, or `SOURCE`.

    Args:
        hosts: the host of each receiver.
        order: the receivers; the first of each host is the one that pulls from another host.
        leaves: the members from which no other may pull.
    """
    groups: dict[str, list[int]] = {source_host: [SOURCE]}
    for receiver in order:
        if receiver not in leaves:
            groups.setdefault(hosts[receiver], []).append(receiver)
    parents: dict[int, int] = {}
    heads = [group[0] for group in groups.values()]
    for place, head in enumerate(heads[1:]):
        parents[head] = heads[place // fan_out]
    for group in groups.values():
        for place, receiver in enumerate(group[1:]):
            parents[receiver] = group[place // _NEIGHBOURS]
    for receiver in order:
        if receiver in leaves:
            parents[receiver] = groups.get(hosts[receiver], heads[-1:])[0]
    return parents
