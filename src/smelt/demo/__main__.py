"""`python -m smelt.demo`: the same as `smelt demo`."""

from smelt.demo.main import command

if __name__ == "__main__":
    command(prog_name="python -m smelt.demo")
