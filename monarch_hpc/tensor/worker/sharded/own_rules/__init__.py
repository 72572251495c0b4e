"""Rules of our own for operators on shards: where DTensor's are wrong, missing or slow."""
