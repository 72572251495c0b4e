"""The process groups of a rank: rendezvous, collectives, and the end of their waits and connections by an abort."""
