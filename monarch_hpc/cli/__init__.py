"""The command line: one module a verb, each with a click command named `command`."""
