"""The tasks of jobs on their hosts: fork servers with their variables and folders, and the actor that leads them."""
