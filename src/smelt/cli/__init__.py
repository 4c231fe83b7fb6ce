"""The command `smelt`.  Each subcommand is a file of its own, imported when it is used.

>>> from smelt.cli.main import COMMANDS
>>> "doctor" in COMMANDS
True
"""
