"""The command `smelt`: each subcommand is a module, imported when it is used.

>>> from smelt.cli.main import COMMANDS
>>> "doctor" in COMMANDS
True
"""
