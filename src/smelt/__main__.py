"""`python -m smelt` is `smelt`."""

from smelt.cli.main import main

if __name__ == "__main__":
    main()
