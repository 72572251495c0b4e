"""`monarch-hpc dash`: a page with the ranks of runs, their calls, metrics, failures and output."""
