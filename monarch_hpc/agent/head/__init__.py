"""The allocation's head, on its first host: roster of agents, runs, questions, and routing of control messages."""
