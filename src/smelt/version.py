"""The package version, which is also part of every cache key."""

__version__ = "0.1.0"
