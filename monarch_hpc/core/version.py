"""The version of this package; both sides of a channel compare it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
