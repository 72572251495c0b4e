"""Trees of arrays: how their elements lie in memory, their versions and shards, and how they are read elsewhere."""
