"""`python -m workbench` is the command line, and so is `accelerate launch ... -m workbench`."""

from workbench.commands.cli import main

if __name__ == "__main__":
    main()
