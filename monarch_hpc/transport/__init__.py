"""Moving frames between the processes of an allocation, and nobody else's."""
