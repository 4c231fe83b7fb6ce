"""Packages and libraries that Smelt builds on, each behind one module."""
