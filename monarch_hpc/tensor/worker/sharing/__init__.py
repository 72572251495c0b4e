"""What other actors of a rank's proc get from it: how they find the worker, and how its values reach them."""
