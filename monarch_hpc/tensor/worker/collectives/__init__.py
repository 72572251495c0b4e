"""The process groups of a rank: rendezvous, collectives, and the connections that an abort cuts."""
