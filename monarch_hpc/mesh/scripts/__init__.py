"""Scripts as ranks: plain Python scripts, torchrun's conventions, SPMD."""
