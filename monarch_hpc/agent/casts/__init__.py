"""Casts through the agents' tree: routes, channels to procs, and reduction of answers on the way back."""
