"""One actor: its mailbox, thread, endpoints, running invocations and replies."""
