"""The programs that `benchmarks.actors` compares: the same actor and the same work with monarch-hpc and each peer."""
