"""`python -m bm25v.cli`."""

from bm25v.cli import main

main()
