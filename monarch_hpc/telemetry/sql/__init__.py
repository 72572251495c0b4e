"""Questions in SQL over many hosts: their texts for hosts and for the asking process, and the engine that runs them."""
