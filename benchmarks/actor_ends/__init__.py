"""The programs that `benchmarks.actors` compares: the same actor and the same work in ours and in each peer."""
