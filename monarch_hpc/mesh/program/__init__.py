"""The program's side of an allocation: the controller, its fleet of procs, causes of their deaths."""
