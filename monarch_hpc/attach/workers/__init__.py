"""Workers that were started manually, and programs that attach to them."""
