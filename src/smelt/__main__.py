"""Run the command `smelt` with `python -m smelt`."""

from smelt.cli.main import main

if __name__ == "__main__":
    main()
