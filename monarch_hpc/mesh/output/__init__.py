"""Output of procs as the program prints it: choice, folding, printing."""
