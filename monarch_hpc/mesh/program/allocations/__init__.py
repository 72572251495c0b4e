"""The allocations of a program: how they are found and left, what it has on each, and the links between them."""
