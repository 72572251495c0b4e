"""The side of mesh tensors that runs in procs: the actors that hold the values and execute the records."""
