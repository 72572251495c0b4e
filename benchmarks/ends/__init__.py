"""The two processes of a row of `benchmarks.transport`: ours, and the floors that it is compared with."""
