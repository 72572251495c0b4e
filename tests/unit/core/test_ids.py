"""Numbers of meshes."""

from __future__ import annotations

import struct

from monarch_hpc.core.ids import mesh_number, number_in_program


def test_the_last_mesh_of_the_last_opening_fits_a_signed_number_of_64_bits() -> None:
    last = mesh_number(2**31 - 1, 2**32 - 1)
    assert struct.unpack("<q", struct.pack("<q", last)) == (2**63 - 1,)
    assert number_in_program(last) == 2**32 - 1


def test_meshes_of_two_openings_never_have_the_same_number() -> None:
    numbers = {mesh_number(member, number) for member in range(4090, 4100) for number in (1, 2, 2**20, 2**20 + 1)}
    assert len(numbers) == 40
