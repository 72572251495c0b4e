"""Memory of GPUs: opened by other processes of its host, and staged through host memory elsewhere."""
