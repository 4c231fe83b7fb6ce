"""Kernel to machine code, one folder for each back end."""
