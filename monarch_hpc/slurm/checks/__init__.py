"""Checks of a request before sbatch: the site's rules, and the reservation."""
