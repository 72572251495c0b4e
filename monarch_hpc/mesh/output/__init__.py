"""Output of procs in the program: settings, folding of equal lines, printing."""
