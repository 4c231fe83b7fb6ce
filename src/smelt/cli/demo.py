"""`smelt demo`: semantic search over the documentation of the user's Python.

>>> command.name
'demo'
"""

from smelt.demo.main import command

__all__ = ["command"]
