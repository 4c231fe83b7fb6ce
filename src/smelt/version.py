"""The version of the package, also a part of every cache key."""

__version__ = "0.1.0"
