"""The allocation's head, on its first host: runs, the roster of agents, surveys, messages between them."""
