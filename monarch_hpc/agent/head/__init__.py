"""The allocation's head, on one of its hosts: roster of agents, runs, questions, and routing of control messages."""
