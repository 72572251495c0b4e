"""Answers that outlive their caller: kept in the procs until the program, or its successor, has read them."""
