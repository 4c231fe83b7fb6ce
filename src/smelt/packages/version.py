"""The package version, part of every cache key, and the name that pip installs."""

__version__ = "0.2.0"

DISTRIBUTION = "smelt-compiler"
"""`smelt` on PyPI belongs to others."""
