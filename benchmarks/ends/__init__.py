"""The two processes of a row of `benchmarks.transport`: our fabrics, and the floors that they are compared with."""
