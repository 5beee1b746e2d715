"""`python -m hztune` is the `hztune` command."""

from hztune.cli import main

main()
