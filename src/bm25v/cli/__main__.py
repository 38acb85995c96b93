"""`python -m bm25v.cli` runs the command line."""

from bm25v.cli import main

main()
