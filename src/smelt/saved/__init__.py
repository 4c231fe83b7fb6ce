"""Compiled programs as files: what a file holds, how it is written, checked and mapped."""
