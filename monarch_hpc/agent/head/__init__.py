"""The allocation's head, on its first host: roster of agents, runs, surveys, and routing of control messages."""
