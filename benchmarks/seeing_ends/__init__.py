"""Programs that `benchmarks.seeing_peers` asks what they tell, one for each peer, in its own interpreter."""
