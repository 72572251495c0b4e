"""The process groups of a rank: rendezvous, collectives, the waits that an abort ends and the connections that it cuts."""
