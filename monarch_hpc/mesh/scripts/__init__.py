"""Plain Python scripts as ranks of a mesh, torchrun's conventions, and torch.distributed in actors."""
