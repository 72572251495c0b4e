"""The runs of programs at the head: how they open, what becomes of them without their program, and their end."""
