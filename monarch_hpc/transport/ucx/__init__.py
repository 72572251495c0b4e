"""The fast lane of a channel: UCX, which brings shared memory and RDMA networks."""
