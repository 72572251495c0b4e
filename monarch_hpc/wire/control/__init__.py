"""Control messages between controller, head, agents and procs: frozen dataclasses, encoded as JSON.

Plain data on purpose: agents and the command line never unpickle what users sent. Each message names its run, so that
the head can forward it without understanding it.
"""
