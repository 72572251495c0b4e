"""Casts through the agents' tree: routes, channels to procs, reduction of answers on the way back."""
