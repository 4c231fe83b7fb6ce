"""`python -m demo`: semantic search over the documentation of this Python."""

from demo.main import command

if __name__ == "__main__":
    command(prog_name="python -m demo")
