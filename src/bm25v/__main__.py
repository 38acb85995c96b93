"""`python -m bm25v` runs the command line."""

from bm25v.cli import main

if __name__ == "__main__":
    main()
