"""An electorate as a message, and back."""

from __future__ import annotations

from monarch_hpc.supervision.electorate import Electorate, Voice, Voters
from monarch_hpc.wire.control.succession import Announce

__all__ = ["announcement_of", "electorate_of"]


def announcement_of(electorate: Electorate) -> Announce:
    """Return the message by which its head announces an electorate."""
    voters, before = electorate.voters, electorate.before or Voters(())
    return Announce(
        electorate.term,
        electorate.number,
        list(map(str, voters.hosts)),
        list(map(str, before.hosts)),
        electorate.heeds_slurm,
        electorate.closed,
        str(voters.owner),
        str(before.owner),
    )


def electorate_of(message: Announce, head: Voice) -> Electorate:
    """Return the electorate that *head* has announced."""
    before = Voters(tuple(map(int, message.before)), int(message.owner_before)) if message.before else None
    voters = Voters(tuple(map(int, message.hosts)), int(message.owner))
    return Electorate(
        *(message.term, message.number, head, voters, before), heeds_slurm=message.heeds_slurm, closed=message.closed
    )
