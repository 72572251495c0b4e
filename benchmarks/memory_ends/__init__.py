"""One module for each peer of `benchmarks.rdma`: run as a program in the peer's interpreter, it prints JSON.

Its arguments are the number of bytes and of rounds; it prints the best time of a read and of a write, in seconds.
"""
