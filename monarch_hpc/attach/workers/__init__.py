"""Workers that were started by hand, and programs that attach to them."""
