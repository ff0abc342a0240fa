"""`python -m scale0` is the command `scale0`."""

from scale0.cli.main import main

main()
