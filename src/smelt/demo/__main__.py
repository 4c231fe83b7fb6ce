"""`python -m smelt.demo`: alias of `smelt demo`."""

from smelt.demo.main import command

if __name__ == "__main__":
    command(prog_name="python -m smelt.demo")
