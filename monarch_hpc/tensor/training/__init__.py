"""Training in the program: modules and optimizers that live on the ranks, pipelines, checkpoints."""
