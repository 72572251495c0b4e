"""The sections of the configuration that have modules: one dataclass each."""
